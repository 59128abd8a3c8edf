"""mFormerV1-sm at 384 px: 31.4 million parameters, 13.4 GMAC per picture.

    linnaeus train --config=configs/mformer_v1_sm.py --workdir=runs/mformer_v1_sm

The data are data/labels.h5 and data/images.h5, if data.h5.labels_path and data.h5.images_path do not name others.
128 pictures per device keep about 21.5 GB for the backward pass, 3.6 GB with recomputation
(`linnaeus models`).
"""

from ml_collections import ConfigDict

from linnaeus_jax.config.sizes import sized


def get_config() -> ConfigDict:
    return sized("mFormerV1", "sm", batch_size_per_device=128)
