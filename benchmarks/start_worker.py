"""One start of a run, as far as its first update, timed; a child of `benchmarks.start_up`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any


def now() -> tuple[float, float]:
    """Seconds by the clock, and of the CPU in all threads."""
    return time.perf_counter(), time.process_time()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="as of linnaeus_jax.main, after --")
    args = parser.parse_args(argv)
    started = now()
    import jax

    import linnaeus_jax.main
    import linnaeus_jax.run.trainer
    from linnaeus_jax.run.experiment import Experiment
    from linnaeus_jax.step import compilation

    imported = now()
    seconds: dict[str, float] = {}

    def note(name: str, since: tuple[float, float]) -> None:
        seconds[name], seconds[f"{name}_cpu"] = (end - start for start, end in zip(since, now(), strict=True))

    def timed(name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            before = now()
            result = jax.block_until_ready(function(*args, **kwargs))
            note(name, before)
            return result

        return call

    first_call = compilation.CompiledStep.__call__

    def first_update(self: Any, state: Any, batch: Any) -> None:
        jax.block_until_ready(first_call(self, state, batch))
        note("first_update", imported)
        print(json.dumps(seconds), flush=True)
        os._exit(0)

    note("imports", started)
    patched: Any = Experiment
    patched.initial_state = timed("initial_state", Experiment.initial_state)
    patched = compilation
    patched.compile_step = timed("step", compilation.compile_step)
    patched.CompiledStep.__call__ = first_update
    sys.exit(linnaeus_jax.main.main(args.arguments[1:]))


if __name__ == "__main__":
    main()
