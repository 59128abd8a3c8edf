"""mFormerV0-md at 384 px: 50.4 million parameters, 27.5 GMAC per picture.

    linnaeus train --config=configs/mformer_v0_md.py --workdir=runs/mformer_v0_md

The data are data/labels.h5 and data/images.h5, if data.h5.labels_path and data.h5.images_path do not name others.
32 pictures per device keep about 26.1 GB for the backward pass, 3.9 GB with recomputation
(`linnaeus models`).
"""

from ml_collections import ConfigDict

from linnaeus_jax.config.sizes import sized


def get_config() -> ConfigDict:
    return sized("mFormerV0", "md", batch_size_per_device=32)
