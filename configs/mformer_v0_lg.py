"""mFormerV0-lg at 384 px: 89.3 million parameters, 52.8 GMAC per picture.

    linnaeus train --config=configs/mformer_v0_lg.py --workdir=runs/mformer_v0_lg

The data are data/labels.h5 and data/images.h5, if data.h5.labels_path and data.h5.images_path do not name others.
32 pictures per device keep about 36.1 GB for the backward pass, 7.0 GB with recomputation
(`linnaeus models`).
"""

from ml_collections import ConfigDict

from linnaeus_jax.config.sizes import sized


def get_config() -> ConfigDict:
    return sized("mFormerV0", "lg", batch_size_per_device=32)
