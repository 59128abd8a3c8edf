"""Two processes on loopback train as one does with two devices."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from linnaeus_jax.trainer import run
from tests.tiny import tiny_config
from tests.training.test_kill import final_parameters
from tests.training.test_trainer import rows_of


@pytest.mark.slow
def test_two_processes(tmp_path):
    config = tiny_config(tmp_path / "data", train__epochs=2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = Path(__file__).with_name("process_driver.py")
    env = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(driver), str(index), str(port), str(tmp_path / "data"), str(tmp_path / "two")],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in (0, 1)
    ]
    texts = [process.communicate(timeout=600)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], texts[0][-3000:] + texts[1][-3000:]
    finals = [json.loads((tmp_path / f"two_{index}.json").read_text()) for index in (0, 1)]
    finals = [{name: value for name, value in final.items() if not name.endswith("_sec")} for final in finals]
    assert finals[0] == finals[1]
    alone = run(config, tmp_path / "one")  # two devices of one process
    assert finals[0]["final_val_acc1_taxa_L20"] == alone["final_val_acc1_taxa_L20"]
    np.testing.assert_allclose(finals[0]["final_val_loss"], alone["final_val_loss"], rtol=1e-4)
    expected, found = final_parameters(tmp_path / "one"), final_parameters(tmp_path / "two")
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=2e-5, err_msg=name)
    steps = [row["global_step"] for row in rows_of(tmp_path / "two") if row["event"] == "train"]
    assert steps == sorted(set(steps))
