"""mFormerV1-md at 384 px: 40.3 million parameters, 19.8 GMAC per picture.

    linnaeus train --config=configs/mformer_v1_md.py --workdir=runs/mformer_v1_md

The data are data/labels.h5 and data/images.h5, if data.h5.labels_path and data.h5.images_path do not name others.
64 pictures per device keep about 16.1 GB for the backward pass, 2.4 GB with recomputation
(`linnaeus models`).
"""

from ml_collections import ConfigDict

from linnaeus_jax.config.sizes import sized


def get_config() -> ConfigDict:
    return sized("mFormerV1", "md", batch_size_per_device=64)
