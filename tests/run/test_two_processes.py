"""Two processes on loopback train as one does with two devices."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from linnaeus_jax.run.checkpoints import Checkpoints
from linnaeus_jax.run.trainer import run
from tests.forks import begin
from tests.run import test_stored
from tests.run.process_driver import small_net
from tests.run.test_kill import final_parameters
from tests.run.test_trainer import rows_of
from tests.tiny import tiny_config


def run_both(driver: str, arguments: Callable[[int, int], list[str]], said: Path) -> tuple[list[int | None], list[str]]:
    """Exit codes and outputs of two processes; `arguments` gets the index of the process and a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {"JAX_NUM_CPU_DEVICES": "1"}
    begun = [
        begin(f"tests.run.{driver}", arguments(index, port), said / str(index), environment=environment)
        for index in (0, 1)
    ]
    ended = [process.ended(900) for process in begun]
    return [end.status for end in ended], [end.out + end.error for end in ended]


def two_processes(
    workdir: Path, model: str, epochs: int, moments: tuple[str, ...] = ()
) -> tuple[list[int | None], list[str]]:
    """Exit codes and outputs of two processes that train into `workdir`; moments as of the driver."""
    start = [str(workdir.parent / "data"), str(workdir), model, str(epochs)]
    return run_both(
        "process_driver",
        lambda index, port: [str(index), str(port), *start, *moments[index : index + 1]],
        workdir.parent / "said",
    )


@pytest.mark.slow
def test_two_processes(tmp_path):
    """The program of an update is that of two devices of one process, for which test_train_step.py has the models."""
    config = small_net(tmp_path / "data", 2)
    codes, texts = two_processes(tmp_path / "two", "SmallNet", 2)
    assert codes == [0, 0], texts[0][-3000:] + texts[1][-3000:]
    finals = [json.loads((tmp_path / f"two_{index}.json").read_text()) for index in (0, 1)]
    finals = [{name: value for name, value in final.items() if not name.endswith("_sec")} for final in finals]
    assert finals[0] == finals[1]
    alone = run(config, tmp_path / "one")  # two devices of one process
    assert finals[0]["final_val_acc1_taxa_L20"] == alone["final_val_acc1_taxa_L20"]
    np.testing.assert_allclose(finals[0]["final_val_loss"], alone["final_val_loss"], rtol=1e-4)
    progress = [json.loads((tmp_path / name / "progress.json").read_text()) for name in ("one", "two")]
    assert progress[0] == progress[1]  # rows and micro-batches are counted over all processes
    expected, found = final_parameters(tmp_path / "one"), final_parameters(tmp_path / "two")
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=2e-5, err_msg=name)
    steps = [row["global_step"] for row in rows_of(tmp_path / "two") if row["event"] == "train"]
    assert steps == sorted(set(steps))


@pytest.mark.slow
def test_two_processes_store_a_half_each_and_read_all_of_it(tmp_path):
    config = test_stored.config_of(tmp_path / "data", train__epochs=1)
    codes, texts = two_processes(tmp_path / "two", "stored", 1)
    assert codes == [0, 0], texts[0][-3000:] + texts[1][-3000:]
    alone = run(config, tmp_path / "one")
    finals = [json.loads((tmp_path / f"two_{index}.json").read_text()) for index in (0, 1)]
    for final in finals:
        np.testing.assert_allclose(final["final_val_loss"], alone["final_val_loss"], rtol=1e-4)
    for name in ("train.bin", "val.bin"):
        one, two = (np.fromfile(tmp_path / run / "stored" / name, np.float16) for run in ("one", "two"))
        np.testing.assert_allclose(two, one, atol=2e-3)


@pytest.mark.parametrize(
    ("first", "second", "number"),
    [
        (("none", "0", "0.2"), ("SIGTERM", "5", "0.1"), signal.SIGTERM),  # the one signalled is far ahead
        (("SIGTERM", "3", "0.1"), ("SIGTERM", "5", "0.1"), signal.SIGTERM),
        (("SIGINT", "3", "0.1"), ("none", "0", "0.1"), signal.SIGINT),
        (("none", "0", "0.1"), ("SIGUSR1", "0", "0.1"), signal.SIGUSR1),  # before the first update
    ],
    ids=["SIGTERM to one", "SIGTERM to both", "SIGINT", "SIGUSR1 at the start"],
)
def test_both_processes_stop_after_the_same_update(first, second, number, tmp_path):
    moments = (first, second)
    codes, texts = run_both("signal_driver", lambda index, port: [str(index), str(port), *moments[index]], tmp_path)
    assert codes == [128 + number] * 2, texts
    stopped = [re.findall(r"stopped after (\d+)", text) for text in texts]
    assert len(stopped[0]) == 1
    assert stopped[0] == stopped[1]


@pytest.mark.slow
def test_signal_to_one_of_two_processes_saves_once_and_both_go_on_from_there(tmp_path):
    tiny_config(tmp_path / "data")
    epochs, updates = 6, 36
    codes, texts = two_processes(tmp_path / "run", "toy", epochs, ("none:0", "SIGTERM:3"))
    assert codes == [128 + signal.SIGTERM] * 2, texts[0][-3000:] + texts[1][-3000:]
    said = [
        re.findall(r"stopped by signal (\d+) after (\d+) updates", path.read_text())
        for path in sorted((tmp_path / "run" / "logs").glob("debug_log_rank*.txt"))
    ]
    assert len(said) == 2
    assert said[0] == said[1]
    ((number, step),) = ((int(found), int(update)) for found, update in said[0])
    assert number == signal.SIGTERM
    assert 3 <= step < updates
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    try:
        assert checkpoints.steps()[-1] == step
        assert checkpoints.meta(step)["host"]["progress"]["global_step"] == step
    finally:
        checkpoints.close()
    codes, texts = two_processes(tmp_path / "run", "toy", epochs)
    assert codes == [0, 0], texts[0][-3000:] + texts[1][-3000:]
    assert f"resumed after {step} updates" in texts[0]
    assert rows_of(tmp_path / "run")[-1]["global_step"] == updates
