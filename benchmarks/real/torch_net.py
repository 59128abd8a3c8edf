"""A network of timm, trained from nothing by PyTorch for a number of minutes: a process of its own.

PYTHON benchmarks/real/torch_net.py IN.npz OUT.npz MODEL MINUTES SEED

PYTHON has torch and timm, and needs nothing of this program. IN has `pixels` uint8 [N, H, W, 3], `label` int [N, T],
one column for each of `ranks` and -1 without a label, `names` of the last column's classes, and `side` [N], 0 for
training, 1 for validation, 2 for test. The recipe is the usual
one of ResNets on small pictures (He et al. 2016; Loshchilov & Hutter 2017): SGD with Nesterov momentum 0.9, 128 rows,
rate 0.1 along a cosine after a short warm-up, decay 5e-4, mirror images, and crops after padding by an eighth of the
side. All ranks are classes of one last layer, with weights 1, 1/2, 1/4 ... of their losses, as in the generated
configuration. The CPU time of the process drives the cosine, so that it ends where the minutes do.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import timm
import torch
from torch.nn import functional

RATE, MOMENTUM, DECAY, ROWS, WARMUP = 0.1, 0.9, 5e-4, 128, 0.03
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
BEGAN = time.perf_counter()


def seconds() -> float:
    """Since the process began: of its CPU time, or on a GPU of the clock."""
    return time.perf_counter() - BEGAN if GPU else time.process_time()


def normalised(pixels: torch.Tensor) -> torch.Tensor:
    """uint8 [B, H, W, 3] -> float32 [B, 3, H, W]."""
    mean, std = (torch.tensor(values, device=DEVICE).view(3, 1, 1) for values in (MEAN, STD))
    return (pixels.permute(0, 3, 1, 2).float() / 255 - mean) / std


def augmented(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Each picture shifted by up to an eighth of its side, and half of them mirrored."""
    side, border = x.shape[-1], x.shape[-1] // 8
    top, left = rng.integers(0, 2 * border + 1, (2, len(x), 1))
    rows, columns = top + np.arange(side), left + np.arange(side)
    columns = np.where(rng.random((len(x), 1)) < 0.5, columns[:, ::-1], columns)
    y, z = (torch.from_numpy(np.ascontiguousarray(at)).to(DEVICE) for at in (rows, columns))
    picture = torch.arange(len(x), device=DEVICE)
    padded = functional.pad(x, (border,) * 4).permute(0, 2, 3, 1)
    return padded[picture[:, None, None], y[:, :, None], z[:, None, :]].permute(0, 3, 1, 2)


class FromNothing:
    """The network with the classes of all ranks, on pixels.

    Args:
      given: of IN.
    """

    def __init__(self, name: str, classes: list[int], given: Mapping[str, np.ndarray]) -> None:
        self.classes, self.pixels = classes, torch.from_numpy(given["pixels"]).to(DEVICE)
        net = timm.create_model(name, pretrained=False, num_classes=sum(classes))
        self.net = net.to(DEVICE, memory_format=torch.channels_last if GPU else torch.contiguous_format)
        matrices = [p for p in net.parameters() if p.ndim > 1]
        vectors = [p for p in net.parameters() if p.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(groups, lr=0.0, momentum=MOMENTUM, nesterov=True)
        self.rate, self.rows = RATE, ROWS

    def batch(self, rows: np.ndarray, rng: np.random.Generator) -> torch.Tensor:
        """What the network is trained on."""
        return augmented(normalised(self.pixels[rows]), rng)

    def unchanged(self, rows: np.ndarray) -> torch.Tensor:
        """The same of rows to judge by."""
        return normalised(self.pixels[rows])

    def logits(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """[B, classes] of each rank."""
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=GPU):
            return torch.split(self.net(x), self.classes, dim=1)

    @torch.inference_mode()
    def probabilities(self, rows: np.ndarray) -> list[np.ndarray]:
        """float32 [N, classes] of each rank."""
        self.net.eval()
        parts = [self.logits(self.unchanged(rows[at : at + 500])) for at in range(0, len(rows), 500)]
        self.net.train()
        return [torch.cat(rank).float().softmax(1).cpu().numpy() for rank in zip(*parts)]


def main(argv: list[str], kind: type[FromNothing] = FromNothing) -> int:
    """Writes the arrays of `figures` that there are without calibration, and `curve` [epochs, 2]: minutes since the
    process began, and accuracy of the validation rows at the finest rank."""
    given = np.load(argv[0])
    budget, seed = 60 * float(argv[3]), int(argv[4])
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    label, side, ranks = (given[name] for name in ("label", "side", "ranks"))
    targets = torch.from_numpy(label.astype(np.int64)).to(DEVICE)
    train, val, test = (np.flatnonzero(side == place) for place in range(3))
    model = kind(argv[2], [int(column.max()) + 1 for column in label.T], given)
    model.net.train()
    curve: list[tuple[float, float]] = []
    began = seconds()
    while seconds() < budget:
        order = rng.permutation(train)
        for at in range(0, len(order) - model.rows + 1, model.rows):
            done = min(1.0, (seconds() - began) / (budget - began))
            rate = model.rate * min(done / WARMUP, 0.5 * (1 + np.cos(np.pi * done)))
            for group in model.optimizer.param_groups:
                group["lr"] = rate
            rows = order[at : at + model.rows]
            logits, target = model.logits(model.batch(rows, rng)), targets[rows]
            losses = [
                functional.cross_entropy(each.float(), target[:, rank], ignore_index=-1)
                for rank, each in enumerate(logits)
            ]
            model.optimizer.zero_grad()
            torch.stack([loss * 0.5**rank for rank, loss in enumerate(losses)]).sum().backward()
            model.optimizer.step()
            if done >= 1.0:
                break
        right = model.probabilities(val)[0].argmax(1) == label[val, 0]
        curve.append((seconds() / 60, float(right[label[val, 0] >= 0].mean())))
        print(f"{curve[-1][0]:.2f} minutes, validation {100 * curve[-1][1]:.1f} %", flush=True)
    said, every = model.probabilities(test), np.arange(len(test))
    arrays: dict[str, Any] = {"ranks": ranks, "label": label[test].astype(np.int16), "curve": np.array(curve)}
    arrays["versions"] = np.array([f"{module.__name__} {module.__version__}" for module in (torch, timm)])
    of_label = np.stack([p[every, label[test, rank]] for rank, p in enumerate(said)], axis=1)
    of_label[label[test] < 0] = 1.0
    arrays[f"names/{ranks[-1]}"] = given["names"]
    arrays["raw/predicted"] = np.stack([p.argmax(1) for p in said], axis=1).astype(np.int16)
    arrays["raw/probability"] = np.stack([p.max(1) for p in said], axis=1).astype(np.float16)
    arrays["raw/of_label"] = np.log(np.maximum(of_label, 1e-12)).astype(np.float16)
    for rank, (name, p) in enumerate(zip(ranks, said)):
        arrays[f"count/{name}"] = np.bincount(label[train, rank][label[train, rank] >= 0], minlength=p.shape[1])
    np.savez_compressed(argv[1], **arrays)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
