"""Saves and restores a state as often as it is told; a child of `benchmarks.run_before`.

    python -P benchmarks/saving_worker.py MODEL

Each line of the standard input makes one checkpoint; a line of JSON says the seconds of each part (`saving.MEASURES`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.saving import saved_and_restored, state_of
from benchmarks.step_common import MODELS, write_labels


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    model = parser.parse_args().model
    with tempfile.TemporaryDirectory() as name:
        state = state_of(model, write_labels(Path(name) / "labels.h5"))
        for _ in sys.stdin:
            print(json.dumps(saved_and_restored(Path(name), state)), flush=True)


if __name__ == "__main__":
    main()
