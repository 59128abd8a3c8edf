"""Writes tests/fixtures/weights_original*.pth: small checkpoints with what training programs of PyTorch keep in them.

    pip install torch yacs
    python -m tests.weights.make_fixtures

The tests read the files without either. `test_torch_files.py` says what they hold.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from yacs.config import CfgNode


def checkpoint() -> dict[str, Any]:
    """Weights under `model`, and beside them optimizer, scheduler, settings, progress and metrics as objects."""
    layer = torch.nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(6.0).reshape(2, 3))
        layer.bias.copy_(torch.tensor([0.5, -0.5]))
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer)
    both = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, scheduler], milestones=[3])
    for _ in range(2):
        layer(torch.ones(1, 3)).sum().backward()
    weights = {name: value.clone() for name, value in layer.state_dict().items()}
    optimizer.step()
    both.step()

    base = torch.arange(24.0).reshape(4, 6)
    state: collections.OrderedDict[str, torch.Tensor] = collections.OrderedDict(
        (f"module.fc.{name}", torch.nn.Parameter(value)) for name, value in weights.items()
    )
    state._metadata = {"": {"version": 1}}  # type: ignore[attr-defined]
    state["module.turned"] = base.t()  # strides of another order
    state["module.part"] = base[1:3, ::2]  # begins within its storage, which it shares
    state["module.row"] = torch.ones(1, 3).expand(2, 3)  # a stride of 0
    state["module.half"] = torch.tensor([1.5, -2.0], dtype=torch.float16)
    state["module.brain"] = torch.tensor([0.25, -4.0], dtype=torch.bfloat16)
    state["module.double"] = torch.tensor(1.25, dtype=torch.float64)
    state["module.mask"] = torch.tensor([True, False, True])
    state["module.norm.num_batches_tracked"] = torch.tensor(7)
    state["module.small"] = torch.tensor([-1, 2], dtype=torch.int8)
    state["module.empty"] = torch.zeros(0, 4)

    config = CfgNode({"MODEL": CfgNode({"TYPE": "mFormerV1", "DIMS": [8, 16]}), "TRAIN": CfgNode({"LR": 0.1})})
    config.freeze()
    tracker: Any = collections.defaultdict(list)
    tracker["val/loss"] += [np.float64(0.5), np.float32(0.25)]
    metrics = {
        "history": tracker,
        "best": {"acc1": np.float64(71.5), "epoch": np.int64(3)},
        "confusion": np.arange(4, dtype=np.int64).reshape(2, 2),
        "counts": collections.Counter("aab"),
        "last": collections.deque([1.0, 2.0], maxlen=2),
    }
    progress = {
        "current_stage": "validation",
        "pending_validations": {"null", "mask_meta"},
        "completed_validations": frozenset({"normal"}),
        "partial_validation_indices": collections.defaultdict(dict, {("TEMPORAL", "SPATIAL"): {1: 2}}),
        "kind": dict,
        "started": datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC),
    }
    return {
        "model": state,
        "optimizer": optimizer.state_dict(),
        "optimizers": [optimizer],
        "lr_scheduler": both.state_dict(),
        "scheduler": scheduler,
        "epoch": 3,
        "config": config,
        "args": argparse.Namespace(lr=0.1, output=Path("runs/first")),
        "iteration": 120,
        "training_progress": progress,
        "wandb_run_id": None,
        "metrics_tracker": metrics,
        "rng": {"torch": torch.get_rng_state()[:8].clone(), "python": random.Random(0).getstate()[0], "set": set},
        "device": torch.device("cpu"),
        "dtype": torch.float32,
        "size": torch.Size([1, 2]),
    }


def main() -> None:
    """Writes the files."""
    here = Path(__file__).parents[1] / "fixtures"
    for name, zipped, protocol in (
        ("weights_original.pth", True, 2),
        ("weights_original_old.pth", False, 2),
        ("weights_original_protocol4.pth", True, 4),
    ):
        torch.save(checkpoint(), here / name, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)


if __name__ == "__main__":
    main()
