"""Runs steps of a timm model in PyTorch, as often as another process says; see `benchmarks.step_worker`.

On a GPU the model is compiled and computes in bfloat16 under autocast, convolutions channels last; on a CPU it is
eager. Training is forward, cross entropy, backward and AdamW.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any


def programs(model: str, img_size: int, batch: int, dtype: str) -> tuple[dict[str, Callable[[], Any]], dict[str, Any]]:
    """What can be run by name, and facts: operations of one picture's forward pass, and how it runs."""
    import timm
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    gpu = torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    size = {"img_size": img_size} if model.startswith("vit") else {}
    net = timm.create_model(model, num_classes=1000, **size).to(device, memory_format=torch.channels_last)
    image = torch.randn(batch, 3, img_size, img_size, device=device).contiguous(memory_format=torch.channels_last)
    label = torch.randint(1000, (batch,), device=device)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(image[:1])
    half = dtype == "bfloat16" or (dtype == "auto" and gpu)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=half)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5, weight_decay=0.05, fused=gpu)
    run = torch.compile(net) if gpu else net

    def training() -> None:
        net.train()
        with autocast:
            loss = torch.nn.functional.cross_entropy(run(image), label)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    def evaluation() -> None:
        net.eval()
        with autocast, torch.no_grad():
            run(image)

    facts = {
        "flops_per_image": float(counter.get_total_flops()),
        "how": f"{'compiled' if gpu else 'eager'}, {'bfloat16' if half else 'float32'}",
        "torch": torch.__version__,
        "timm": timm.__version__,
    }
    return {"training": training, "evaluation": evaluation}, facts


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", help="arguments of `programs` as JSON")
    settings = json.loads(parser.parse_args(argv).settings)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    found, facts = programs(**settings)
    import torch

    print(json.dumps(facts), file=answers)
    for line in sys.stdin:
        what, times = line.split()
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(int(times)):
            found[what]()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
        print(json.dumps(seconds), file=answers)


if __name__ == "__main__":
    main()
