"""One of two processes that train together.

    python -m tests.run.process_driver INDEX PORT DATA WORKDIR MODEL EPOCHS [SIGNAL:UPDATE]

SIGNAL:UPDATE sends that signal to itself after so many updates; every update then takes half a second, so that the
processes have time to agree before the run ends by itself. `none` as SIGNAL only takes that time. `stored` as MODEL
trains the last block of one on what is stored, `SmallNet` is that of a plugin.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import jax
import pytest
from ml_collections import ConfigDict

from linnaeus_jax.config.plugins import import_plugins
from linnaeus_jax.run import trainer
from linnaeus_jax.step.compilation import CompiledStep
from tests.extending.common import EXAMPLES
from tests.run import test_stored
from tests.step import toy
from tests.tiny import tiny_config
from tests.undrawn import undrawn


def arm(name: str, count: int) -> None:
    """Slows every update down and signals after `count` of them."""
    original, seen = CompiledStep.__call__, 0

    def wrapped(self: CompiledStep, state: Any, batch: Any) -> Any:
        nonlocal seen
        found = original(self, state, batch)
        seen += 1
        time.sleep(0.5)
        if name != "none" and seen == count:
            os.kill(os.getpid(), signal.Signals[name])
        return found

    CompiledStep.__call__ = wrapped  # type: ignore[method-assign]


def small_net(data: Path, epochs: int) -> ConfigDict:
    """Convolutions that compile in a third of the time of the program's own models."""
    import_plugins(plugged := tiny_config(data, env__plugins=(str(EXAMPLES / "model_example.py"),)))
    return tiny_config(
        data,
        env__plugins=plugged.env.plugins,
        model__type="SmallNet",
        model__variant="narrow",
        train__epochs=epochs,
    )


def main() -> None:
    index, port, data, workdir, model, epochs, *moment = sys.argv[1:]
    toy.register(pytest.MonkeyPatch())
    if moment:
        name, count = moment[0].split(":")
        arm(name, int(count))
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(index), initialization_timeout=60)
    if model == "stored":
        config = test_stored.config_of(Path(data), train__epochs=int(epochs))
    elif model == "SmallNet":
        config = small_net(Path(data), int(epochs))
    else:
        config = tiny_config(Path(data), model__type=model, train__epochs=int(epochs))
    with undrawn():
        final = trainer.run(config, Path(workdir))
    Path(f"{workdir}_{index}.json").write_text(json.dumps(final))


if __name__ == "__main__":
    main()
