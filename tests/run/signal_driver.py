"""One of two processes that only wait for a signal: python -m tests.run.signal_driver INDEX PORT SIGNAL AT SECONDS.

Makes "updates" of SECONDS each and sends itself SIGNAL (`none`: nothing) after the AT-th, or before the first where AT
is 0. Prints `stopped after <update>` and leaves with the exit code of a run.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import jax

from linnaeus_jax.run.interruption import Interruption


def main() -> None:
    index, port, name, at, seconds = sys.argv[1:]
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(index), initialization_timeout=60)
    with Interruption() as interruption:
        for update in range(1000):
            if update == int(at) and name != "none":
                os.kill(os.getpid(), signal.Signals[name])
            time.sleep(float(seconds))
            if interruption.requested():
                print(f"stopped after {update + 1}", flush=True)
                sys.exit(interruption.exit_code)


if __name__ == "__main__":
    main()
