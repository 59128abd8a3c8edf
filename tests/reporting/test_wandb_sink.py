from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import wandb
from ml_collections import ConfigDict

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.saved import plain
from linnaeus_jax.config.typed import Config, typed
from linnaeus_jax.reporting.class_tables import Table
from linnaeus_jax.reporting.metrics_log import MetricsLog
from linnaeus_jax.reporting.run_record import RunRecord
from linnaeus_jax.reporting.sinks import Sinks, new_run_id, open_sinks
from linnaeus_jax.reporting.wandb_sink import WandbSink
from linnaeus_jax.tools import replay_metrics
from tests.reporting.helpers import make_run
from tests.reporting.wandb_file import contents, history_row, records, wait_for_end
from tests.reporting.wandb_server import serving

ROOT = Path(__file__).parents[2]
SECRET = "k3y-that-nobody-may-see"


def make_tree(mode: str = "offline") -> ConfigDict:
    config = get_config()
    config.experiment.group, config.experiment.name = "a_group", "a_name"
    config.experiment.wandb.update(enabled=True, mode=mode, project="birds", tags=("one", "two"), notes="first try")
    with config.unlocked():
        config.env.output.bucket.app_key = SECRET
    return config


def make_config(mode: str = "offline") -> Config:
    return typed(make_tree(mode))


def everything_under(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())


def table_of(row: dict[str, Any], name: str, directory: Path) -> list[list[Any]]:
    """Columns and rows of a table of the only offline run below `directory`; it is taken out of its history row."""
    item = {key: row.pop(key) for key in list(row) if key.startswith(f"classes/{name}/")}
    assert item[f"classes/{name}/_type"] == "table-file"
    (path,) = directory.glob(f"wandb/offline-run-*/files/{item[f'classes/{name}/path']}")
    content = json.loads(path.read_text())
    return [content["columns"], *content["data"]]


def test_offline_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["main", f"--config.env.output.bucket.app_key={SECRET}"])
    tree = make_tree()
    sinks = open_sinks(
        Sinks(),
        MetricsLog(tmp_path / "metrics_log.jsonl"),
        typed(tree).experiment,
        config=plain(tree),
        facts={"model_info": {"parameters": 12345}},
        run_id="run1",
    )
    sinks.write("train", 5, 0, {"train/loss": 2.0, "train/lr": 1e-3})
    sinks.write("train", 10, 0, {"train/loss": 1.5, "train/skipped_updates": 1, "train/grad_norm": float("inf")})
    sinks.write("epoch", 10, 0, {"val/loss": 1.25, "val_mask_TEMPORAL/loss": 1.75, "early_stop/reason": "patience"})
    sinks.write("final", 10, 0, {"final_val_loss": 1.25})
    sinks.tables({"worst_classes": Table(("class", "rows", "%"), [["Parus major [4]", 3, 0.5], ["7", None, 1.0]])})
    sinks.close()

    found = contents(tmp_path)
    run = found["run"]
    assert (run.run_id, run.project, run.run_group, run.display_name) == ("run1", "birds", "a_group", "a_name")
    assert (list(run.tags), run.notes) == (["one", "two"], "first try")
    assert found["config"]["model_info"] == {"parameters": 12345}
    assert found["config"]["experiment"]["name"] == "a_name"
    assert ("*", "global_step") in found["metrics"]
    assert "*" not in found["visible"], "no panel of its own for each of hundreds of names"
    assert {"train/loss", "val/loss_unweighted", "val/non_null/acc1_taxa_L10"} <= set(found["visible"])
    assert len(set(found["visible"])) == 13, "the step and a dozen curves"
    first, second = ({k: v for k, v in row.items() if k[0] != "_" or k == "_step"} for row in found["history"])
    worst = [["class", "rows", "%"], ["Parus major [4]", 3, 0.5], ["7", None, 1.0]]
    assert table_of(second, "worst_classes", tmp_path) == worst
    assert first == {"_step": 5, "global_step": 5, "epoch": 0, "train/loss": 2.0, "train/lr": 1e-3}
    assert second == {
        "_step": 10,
        "global_step": 10,
        "epoch": 0,
        "train/loss": 1.5,
        "train/skipped_updates": 1,
        "train/grad_norm": "Infinity",
        "val/loss": 1.25,
        "val_mask_TEMPORAL/loss": 1.75,
        "early_stop/reason": "patience",
    }
    assert found["summary"]["final_val_loss"] == 1.25
    assert [title for title, _ in found["alerts"]] == ["Non-finite updates", "Early stop"]
    assert found["exit"] == 0
    assert SECRET.encode() not in everything_under(tmp_path)
    assert b"run1" in everything_under(tmp_path)


def test_id_is_kept_and_steps_go_on_over_a_resume(tmp_path: Path) -> None:
    config = make_config()
    last = 0
    for segment, steps in enumerate(((5, 10), (15, 20))):
        directory = tmp_path / str(segment)
        sink = WandbSink(config.experiment, directory=directory, config={}, run_id="same")
        for step in steps:
            sink.write("train", step, 0, {"train/loss": 1.0})
        sink.close()
        found = contents(directory)
        assert found["run"].run_id == "same"
        assert [row["_step"] for row in found["history"]] == list(steps)
        assert found["history"][0]["_step"] > last
        last = found["history"][-1]["_step"]


def test_a_step_may_not_decrease(tmp_path: Path) -> None:
    sink = WandbSink({"project": "p", "wandb": {"mode": "disabled"}}, directory=tmp_path, run_id="x", config={})
    sink.write("train", 5, 0, {"a": 1.0})
    with pytest.raises(ValueError, match="row of step 4 came after one of step 5"):
        sink.write("train", 4, 0, {"a": 1.0})
    sink.close()


#: logs steps, and is killed or ends
START = """
import os, signal, sys, time
from pathlib import Path
from linnaeus_jax.reporting.metrics_log import MetricsLog
from linnaeus_jax.reporting import sinks as sinks_module
from linnaeus_jax.reporting.sinks import Sinks, open_sinks
from tests.reporting.test_wandb_sink import make_config
sinks_module.RETRY_SECONDS = 0.0
log, mode, killed, *steps = sys.argv[1:]
sinks = open_sinks(Sinks(), MetricsLog(Path(log)), make_config(mode).experiment, config={}, facts={}, run_id="killed")
for step in map(int, steps):
    sinks.write("train", step, 0, {"train/loss": step / 10})
if killed == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if killed == "helper killed":  # the process in which W&B does its work
    for task in Path("/proc/self/task").iterdir():
        for process in (task / "children").read_text().split():
            os.kill(int(process), signal.SIGKILL)
    time.sleep(1)
    for step in (40, 45):
        sinks.write("epoch", step, 0, {"train/loss": step / 10})
sinks.close()
"""


def started(log: MetricsLog, mode: str, *arguments: object, **variables: str) -> int:
    """The status of a start in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}  # not our service
    command = [sys.executable, "-c", START, str(log.path), mode, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env={**environment, **variables}, timeout=300).returncode


@pytest.mark.slow
def test_an_offline_run_that_was_killed_is_whole(tmp_path: Path) -> None:
    """The row of step 15 was in the buffer when the run was killed; at last the run goes on from step 10."""
    experiment, log = make_config().experiment, MetricsLog(tmp_path / "metrics_log.jsonl")
    assert started(log, "offline", "killed", 5, 10, 15) == -signal.SIGKILL

    def go_on(step: int, loss: float) -> list[tuple[int, float]]:
        sinks = open_sinks(Sinks(), log, experiment, config={}, facts={}, run_id="killed")
        sinks.write("train", step, 0, {"train/loss": loss})
        sinks.close()
        return [(row["_step"], row["train/loss"]) for row in contents(tmp_path)["history"]]  # of one file

    go_on(20, 2.0)
    assert go_on(25, 2.5) == [(5, 0.5), (10, 1.0), (15, 1.5), (20, 2.0), (25, 2.5)]
    log.supersede(10, frozenset())
    assert go_on(15, -1.0) == [(5, 0.5), (10, 1.0), (15, -1.0)]


def test_the_working_directory_may_change_after_the_first_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B's process is started once, in the directory of the first run, and shared with programs that are started."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        log = MetricsLog(Path("run/metrics_log.jsonl"))
        sinks = open_sinks(Sinks(), log, make_config().experiment, config={}, facts={}, run_id=name)
        sinks.write("train", 1, 0, {"train/loss": 1.0})
        sinks.close()
        (file,) = tmp_path.glob(f"{name}/run/wandb/offline-run-*/run-{name}.wandb")
        wait_for_end(file)


@pytest.mark.slow
def test_an_online_run_that_was_killed_is_whole(tmp_path: Path) -> None:
    """Killed with a row that was not handed over yet; it goes on at once, is killed again and then ends."""
    log = MetricsLog(tmp_path / "metrics_log.jsonl")
    with serving() as server:
        variables = {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "local-" + 40 * "0"}
        assert started(log, "online", "killed", 5, 10, 15, **variables) == -signal.SIGKILL
        assert started(log, "online", "killed", 20, 25, **variables) == -signal.SIGKILL
        assert started(log, "online", "ends", 30, **variables) == 0
        assert started(log, "online", "ends", 35, **variables) == 0
        rows = [(row["_step"], row["train/loss"]) for row in server.rows("killed")]
    assert rows == [(step, step / 10) for step in range(5, 40, 5)]


@pytest.mark.slow
def test_w_and_b_may_lose_the_process_that_works_for_it(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics_log.jsonl")
    assert started(log, "offline", "helper killed", 5, 10, 35) == 0
    *_, last = sorted(tmp_path.glob("wandb/offline-run-*/run-killed.wandb"))
    wait_for_end(last)
    steps = [history_row(record)["_step"] for record in records(last) if record.HasField("history")]
    assert steps == [5, 10, 35, 40, 45]


def test_what_was_sent_stays(tmp_path: Path) -> None:
    """Of three starts the server has the rows of the first, by `wandb sync`, and of the second, which was online."""
    starts = [tmp_path / "wandb" / name for name in ("offline-run-1-x", "run-2-x", "offline-run-3-x")]
    for start in starts:
        start.mkdir(parents=True)
        (start / "run-x.wandb").touch()
    (starts[0] / "run-x.wandb.synced").touch()
    log = MetricsLog(tmp_path / "metrics_log.jsonl")
    open_sinks(Sinks(), log, make_config().experiment, config={}, facts={}, run_id="x").close()
    assert [start.exists() for start in starts] == [True, True, False]


class Server:
    """What a resumed run looks like whose first `starting_step` rows the server has."""

    offline = False

    def __init__(self, starting_step: int) -> None:
        self.starting_step = starting_step
        self.logged: list[tuple[int, dict[str, Any]]] = []
        self.summary: dict[str, Any] = {}

    def define_metric(self, name: str, step_metric: str | None = None, hidden: bool = False) -> None: ...

    def log(self, row: dict[str, Any], step: int, commit: bool) -> None:
        self.logged.append((step, row))

    def finish(self, exit_code: int) -> None: ...


def test_resume_sends_only_what_the_server_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(starting_step=11)
    arguments: dict[str, Any] = {}
    monkeypatch.setattr(wandb, "init", lambda **given: arguments.update(given) or server)
    log = MetricsLog(tmp_path / "metrics_log.jsonl")
    for step in (5, 10, 15):
        log.write("train", step, 0, {"train/loss": step / 10})
    config = make_config("online")
    sinks = open_sinks(Sinks(), log, config.experiment, config={}, facts={}, run_id="x")
    sinks.write("epoch", 15, 0, {"val/loss": 0.5})
    sinks.close()
    assert arguments["resume"] == "allow"
    assert arguments["mode"] is None  # so that WANDB_MODE counts
    ((step, row),) = server.logged
    assert step == 15
    assert (row["train/loss"], row["val/loss"]) == (1.5, 0.5)


def test_the_last_row_of_a_failed_run_is_left_to_its_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The validation at step 10 failed; a server would not take the values that its row lacked."""
    server = Server(starting_step=0)
    monkeypatch.setattr(wandb, "init", lambda **_: server)
    log, experiment = MetricsLog(tmp_path / "metrics_log.jsonl"), make_config("online").experiment
    for exit_code in (1, 0):
        sinks = open_sinks(Sinks(), log, experiment, config={}, facts={}, run_id="x")
        if exit_code:
            sinks.write("train", 10, 0, {"train/loss": 1.0})
        else:
            sinks.write("epoch", 10, 0, {"val/loss": 0.5})
        sinks.close(exit_code)
    ((_, row),) = server.logged
    assert (row["train/loss"], row["val/loss"]) == (1.0, 0.5)


def test_a_package_that_cannot_be_loaded_leaves_the_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "linnaeus_jax.reporting.wandb_sink", None)
    log = MetricsLog(tmp_path / "metrics_log.jsonl")
    sinks = open_sinks(Sinks(), log, make_config("online").experiment, config={}, facts={}, run_id="x")
    assert sinks.optional == []
    assert "W&B is off, training goes on; it could not be started: import of" in caplog.text


def test_disabled_mode_and_failures_leave_the_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = MetricsLog(tmp_path / "metrics_log.jsonl")
    sinks = open_sinks(Sinks(), log, make_config("disabled").experiment, config={}, facts={}, run_id=new_run_id())
    sinks.write("train", 1, 0, {"train/loss": 1.0})
    sinks.close()
    assert len(log.path.read_text().splitlines()) == 1

    def broken(**_: Any) -> None:
        raise wandb.Error("no network")

    monkeypatch.setattr(wandb, "init", broken)
    sinks = open_sinks(Sinks(), log, make_config("online").experiment, config={}, facts={}, run_id="x")
    assert sinks.optional == []
    sinks.write("train", 2, 0, {"train/loss": 1.0})
    assert len(log.path.read_text().splitlines()) == 2


def test_replay_rebuilds_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run")
    assert replay_metrics.main([str(run), "--mode=offline", f"--out={tmp_path / 'out'}", "--run-id=again"]) == 0
    assert "sent to wandb" in capsys.readouterr().out
    found = contents(tmp_path / "out")
    rows = RunRecord.load(run).rows
    expected: dict[int, dict[str, Any]] = {}
    for row in rows:
        if row.event != "final":
            expected.setdefault(row.step, {"global_step": row.step, "epoch": row.epoch}).update(row.values)
    actual = {row["_step"]: {k: v for k, v in row.items() if not k.startswith("_")} for row in found["history"]}
    last, out = actual[max(actual)], tmp_path / "out"
    worst, mistakes = (table_of(last, name, out) for name in ("worst_classes", "confident_mistakes"))
    assert actual == expected
    assert (len(worst), worst[0][1]) == (1 + 15, "class")
    names = ["Passer domesticus (house sparrow) [1005]", "<script>alert(1)</script> [1004]"]
    credit = ["17.jpg", "CC-BY-NC 4.0", "J. <b>Doe\ufffd", "10.15468/dl.abc"]
    assert mistakes[1] == ["species", 17, *names, 99.5, *credit]
    assert mistakes[2] == ["species", 3, "1002", "unknown", 90.0, "3.jpg", "", "", ""]
    stamps = [row["_timestamp"] for row in found["history"]]
    assert stamps[0] == pytest.approx(rows[0].timestamp)
    assert found["summary"]["final_val_chain_accuracy"] == 0.8
    assert found["run"].display_name == "run"
    assert found["run"].run_id == "again"


def test_replay_names_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay_metrics.main([str(tmp_path)]) == 2
    assert "metrics_log.jsonl does not exist; give the directory of a run" in capsys.readouterr().err


def test_an_offline_run_without_a_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are files, which W&B keeps below the home directory unless told otherwise."""
    for variable in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, "/proc/none")
    for variable in (wandb.env.DATA_DIR, wandb.env.CACHE_DIR):
        monkeypatch.setenv(variable, "/proc/none/wandb")  # taken back after the test
    sink = WandbSink(make_config().experiment, directory=tmp_path, config={}, run_id="homeless")
    sink.write("train", 5, 0, {"train/loss": 1.0})
    sink.tables({"worst_classes": Table(("class",), [["Parus major"]])})
    sink.close()
    (row,) = contents(tmp_path)["history"]
    assert row["train/loss"] == 1.0
    assert table_of(row, "worst_classes", tmp_path) == [["class"], ["Parus major"]]


def test_a_table_that_fails_costs_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = WandbSink(make_config().experiment, directory=tmp_path, config={}, run_id="without")
    monkeypatch.setattr(wandb.Table, "bind_to_run", lambda *_, **__: 1 / 0)
    sink.write("train", 5, 0, {"train/loss": 1.0})
    sink.tables({"worst_classes": Table(("class",), [["Parus major"]])})
    with pytest.raises(ZeroDivisionError):
        sink.close()
    sink.close()
    (row,) = contents(tmp_path)["history"]
    assert row["train/loss"] == 1.0
