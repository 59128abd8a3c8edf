"""mFormerV1-xl at 384 px: 433.5 million parameters, 224.1 GMAC per picture.

    linnaeus train --config=configs/mformer_v1_xl.py --workdir=runs/mformer_v1_xl

The data are data/labels.h5 and data/images.h5, if data.h5.labels_path and data.h5.images_path do not name others.
16 pictures per device keep about 20.8 GB for the backward pass, 2.5 GB with recomputation
(`linnaeus models`).
"""

from ml_collections import ConfigDict

from linnaeus_jax.config.sizes import sized


def get_config() -> ConfigDict:
    return sized("mFormerV1", "xl", batch_size_per_device=16)
