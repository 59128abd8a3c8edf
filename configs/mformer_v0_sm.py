"""mFormerV0-sm at 384 px: 33.2 million parameters, 13.8 GMAC per picture.

    linnaeus train --config=configs/mformer_v0_sm.py --workdir=runs/mformer_v0_sm

The data are data/labels.h5 and data/images.h5, if data.h5.labels_path and data.h5.images_path do not name others.
64 pictures per device keep about 35.5 GB for the backward pass, 6.6 GB with recomputation
(`linnaeus models`).
"""

from ml_collections import ConfigDict

from linnaeus_jax.config.sizes import sized


def get_config() -> ConfigDict:
    return sized("mFormerV0", "sm", batch_size_per_device=64)
