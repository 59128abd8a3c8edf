"""`benchmarks.step_worker` as one of several processes that train together; a child of `benchmarks.processes`."""

from __future__ import annotations

import argparse

from benchmarks import step_worker
from linnaeus_jax.config.processes import find_processes
from linnaeus_jax.run.processes import join
from linnaeus_jax.step.process import use_batch_scheduling


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", help="fields of `step_worker.Settings` as JSON; rows are those of all processes")
    for name in ("coordinator", "processes", "process"):
        parser.add_argument(f"--{name}", required=True, help=f"as of linnaeus_jax.main --{name}")
    args = parser.parse_args(argv)
    given = {"coordinator": args.coordinator, "processes": args.processes, "process": args.process}
    join(find_processes(given, {}), keep_memory=True)
    use_batch_scheduling()  # as a run does
    step_worker.main([args.settings])


if __name__ == "__main__":
    main()
