"""Checkpoints on disk: what is saved, what stays, and what a damaged or foreign one leads to."""

from __future__ import annotations

import errno
import json
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from linnaeus_jax.files import DIGESTS, UNREADABLE_CHECKPOINTS, DamagedFileError
from linnaeus_jax.run import read_errors
from linnaeus_jax.run.checkpoints import CheckpointError, Checkpoints
from linnaeus_jax.run.retention import best_checkpoint, preserved, retention_policy
from linnaeus_jax.step.placement import Placement


def index_of(ranking: dict[int, float | None]) -> dict[int, dict]:
    return {step: {"epoch": 0, "metric": value} for step, value in ranking.items()}


def keep(ranking: dict[int, float | None], steps: list[int], top: int, last: int) -> set[int]:
    return set(preserved(retention_policy(lambda: index_of(ranking), top, last), steps))


def test_retention_fixture(fixtures):
    for case in json.loads((fixtures / "observability_misc.json").read_text())["retention"]:
        top, last = case["keep_top_n"], case["keep_last_n"]
        present: list[int] = []
        for step in case["steps"]:
            present.append(step["after_epoch"])
            ranking = {epoch: value for epoch, value, _ in step["ranking"]}
            present = sorted(keep(ranking, present, top, last))
            # two corrections of the recorded behaviour: 0/0 keeps everything, and the newest is never deleted
            wanted = set(step["kept"]) | {step["after_epoch"]}
            assert present == (sorted(wanted) if top or last else list(range(step["after_epoch"] + 1)))


def test_retention_rules():
    steps = [10, 20, 30, 40]
    assert keep({}, steps, 0, 0) == {10, 20, 30, 40}
    assert keep({}, steps, 2, 0) == {30, 40}
    assert keep({10: 0.9}, steps, 2, 0) == {10, 40}
    assert keep({10: 0.9, 20: 0.8}, steps, 1, 0) == {10, 40}
    assert keep({10: None, 20: -5.0}, steps, 1, 1) == {20, 40}
    assert keep({10: 0.5, 20: 0.5, 30: 0.5}, steps, 2, 1) == {10, 20, 40}
    assert keep({10: None, 20: None, 30: None, 40: None}, steps, 2, 0) == {10, 20, 40}
    assert keep({50: 1.0}, steps, 1, 1) == {40}
    assert keep({10: 0.9}, steps, 10, 0) == {10, 20, 30, 40}
    assert keep({}, [], 1, 1) == set()


def test_best_checkpoint():
    index = index_of({10: 0.2, 20: 0.9, 30: 0.9, 40: None})
    assert best_checkpoint(index, [10, 20, 30, 40]) == 20
    assert best_checkpoint(index, [30, 40]) == 30
    assert best_checkpoint(index, [40, 50]) == 40
    assert best_checkpoint(index, [50]) is None


BOUNDARY = {"progress": {"epoch": 1}, "ranking": {}}


def state(value: float = 0.0) -> dict:
    return {"params": {"kernel": jnp.full((2, 3), value, jnp.float32)}, "step": jnp.zeros((), jnp.int32)}


def abstract(tree: dict) -> dict:
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), tree)


@pytest.fixture
def opened(tmp_path):
    """Makes checkpoints of one directory and closes them."""
    made = []

    def make(policy=None) -> Checkpoints:
        made.append(Checkpoints(tmp_path, policy))
        return made[-1]

    yield make
    for checkpoints in made:
        checkpoints.close()


def on_disk(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_orbax_deletes_at_the_save_and_retain_what_the_ranking_adds(tmp_path, opened):
    index: dict[int, dict] = {}
    checkpoints = opened(retention_policy(lambda: index, 1, 1))
    ends = []
    for step, metric in ((10, 0.5), (20, 0.4), (30, 0.9), (40, 0.1)):
        checkpoints.save(step, state(step), {})
        checkpoints.wait()
        saved = checkpoints.steps()
        index |= index_of({step: metric})
        dropped = checkpoints.retain()
        checkpoints.finish_boundary(step, {})
        ends.append((saved, dropped, checkpoints.steps()))
    assert ends == [
        ([10], [], [10]),
        ([10, 20], [], [10, 20]),
        ([10, 30], [10, 20], [30]),  # 20 went with the save, 10 when 30 turned out to be better
        ([30, 40], [], [30, 40]),
    ]
    assert on_disk(tmp_path) == ["boundary_30.json", "boundary_40.json", "ckpt_step_30", "ckpt_step_40"]


def test_boundary_file_of_a_checkpoint_that_went_before_a_kill_goes_too(tmp_path, opened):
    first = opened(retention_policy(dict, 0, 1))
    first.save(10, state(), {})
    first.finish_boundary(10, {})
    first.save(20, state(), {})
    first.close()  # here the process is killed, before retention
    assert on_disk(tmp_path) == ["boundary_10.json", "ckpt_step_20"]
    opened(retention_policy(dict, 0, 1)).retain()
    assert on_disk(tmp_path) == ["ckpt_step_20"]


def test_boundary_files_without_a_checkpoint_are_removed_by_one_process(tmp_path, opened, monkeypatch):
    checkpoints = opened()
    for step in (10, 20, 30):
        checkpoints.finish_boundary(step, {})
    checkpoints.save(10, state(), {})
    checkpoints.wait()
    unlink = Path.unlink

    def raced(path: Path, missing_ok: bool = False) -> None:
        unlink(path)  # another process was faster
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(jax, "process_index", lambda: 1)
        checkpoints.unlink_boundaries()
    assert {"boundary_20.json", "boundary_30.json"} <= set(on_disk(tmp_path)), "only one process removes files"
    monkeypatch.setattr(Path, "unlink", raced)
    checkpoints.unlink_boundaries()
    monkeypatch.undo()
    assert on_disk(tmp_path) == ["boundary_10.json", "ckpt_step_10"]


def test_restore_gives_back_state_and_meta(opened):
    first = opened()
    first.save(10, state(1.5), {"host": {"value": 0.1}})
    first.finish_boundary(10, BOUNDARY)
    first.wait()
    again = opened()
    step, found, meta = again.restore_newest(abstract(state()))
    assert step == 10
    assert float(found["params"]["kernel"][1, 2]) == 1.5
    assert meta == again.meta(10) == {"host": {"value": 0.1}}
    assert again.finished_boundary(10) == BOUNDARY
    assert again.finished_boundary(20) is None
    assert again.shapes(10) == {"params.kernel": (2, 3), "step": ()}


def test_numbers_that_are_not_finite_come_back_and_are_strict_json(tmp_path, opened):
    host = {"progress": {}, "ranking": {"10": {"value": math.nan, "other": [math.inf, -math.inf]}}}
    checkpoints = opened()
    checkpoints.save(10, state(1), {"host": host})
    checkpoints.wait()
    checkpoints.finish_boundary(10, host)
    for found in (checkpoints.meta(10)["host"], checkpoints.finished_boundary(10)):
        entry = found["ranking"]["10"]
        assert math.isnan(entry["value"])
        assert entry["other"] == [math.inf, -math.inf]
    written = [path for path in tmp_path.rglob("*") if path.suffix == ".json" or path.name == "metadata"]
    assert written
    for path in written:
        assert not re.search(r"\b(NaN|Infinity)\b(?!\")", path.read_text())


def test_a_save_compiles_no_slices_of_small_arrays_that_every_device_holds(opened):
    everywhere = jax.device_put(state(2.5), Placement(jax.devices()).replicated)
    assert len(everywhere["params"]["kernel"].sharding.device_set) > 1
    compiled = []

    def listener(event: str, duration_secs: float, **_: str | int) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listener)
    checkpoints = opened()
    try:
        checkpoints.save(10, everywhere, {})
        checkpoints.wait()
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    assert compiled == []
    _, found, _ = checkpoints.restore_newest(abstract(state()))
    assert float(found["params"]["kernel"][1, 2]) == 2.5


def test_no_checkpoint_is_none(opened):
    assert opened().restore_newest(abstract(state())) is None


def test_same_step_twice_is_an_error(opened):
    checkpoints = opened()
    checkpoints.save(10, state(), {})
    with pytest.raises(CheckpointError, match="checkpoint 10 exists already"):
        checkpoints.save(10, state(), {})


def test_unreadable_newest_falls_back_and_all_unreadable_is_an_error(tmp_path, opened):
    first = opened()
    for step in (10, 20):
        first.save(step, state(step), {})
    first.wait()
    (tmp_path / "ckpt_step_20" / "meta" / "metadata").write_text("{ not JSON")
    first.finish_boundary(20, {})
    checkpoints = opened()
    assert checkpoints.restore_newest(abstract(state()))[0] == 10
    assert checkpoints.steps() == [10]
    (aside,) = (tmp_path.parent / UNREADABLE_CHECKPOINTS).iterdir()
    assert aside.name.startswith("ckpt_step_20.")
    assert {"boundary_20.json", "meta", "state"} <= set(on_disk(aside))
    assert json.loads((aside / "reason.json").read_text())["step"] == 20
    checkpoints.save(20, state(20), {})  # as the run that goes on will
    checkpoints.wait()
    for step in (10, 20):
        (tmp_path / f"ckpt_step_{step}" / "meta" / "metadata").write_text("{ not JSON")
    with pytest.raises(CheckpointError, match="can be read") as raised:
        opened().restore_newest(abstract(state()))
    assert "20: " in str(raised.value)
    assert on_disk(tmp_path) == ["ckpt_step_10", "ckpt_step_20"], "where none can be read, nothing is moved"


@pytest.mark.parametrize(("failures", "tries"), [(1, 2), (3, 3)])
def test_an_error_of_the_storage_is_tried_again_and_then_stops_the_run(tmp_path, opened, monkeypatch, failures, tries):
    first = opened()
    for step in (10, 20):
        first.save(step, state(step), {})
        first.finish_boundary(step, {})
    first.wait()
    before, checkpoints, calls = on_disk(tmp_path), opened(), []
    restore = checkpoints.restore

    def failing(*arguments):
        calls.append(arguments[0])
        if len(calls) <= failures:
            raise OSError(errno.EIO, "Input/output error")
        return restore(*arguments)

    monkeypatch.setattr(checkpoints, "restore", failing)
    monkeypatch.setattr(read_errors, "WAITS", (0.0, 0.0))
    if failures < 3:
        assert checkpoints.restore_newest(abstract(state()))[0] == 20
    else:
        with pytest.raises(CheckpointError, match=r"checkpoint 20 in .* cannot be read now \(OSError: .*Input/output"):
            checkpoints.restore_newest(abstract(state()))
    assert calls == [20] * tries
    assert on_disk(tmp_path) == before


def test_errors_of_the_storage_are_told_from_damage():
    assert read_errors.is_storage_error(OSError(errno.EACCES, "Permission denied"))
    text = "UNAVAILABLE: Error reading x: [OS error 5: EIO Input/output error]"
    assert read_errors.is_storage_error(ValueError(text))
    outer = ValueError("the array cannot be read")
    outer.__cause__ = OSError(errno.EIO, "Input/output error")
    assert read_errors.is_storage_error(outer)
    assert not read_errors.is_storage_error(FileNotFoundError(errno.ENOENT, "No such file or directory"))
    assert not read_errors.is_storage_error(ValueError("DATA_LOSS: Error decoding b-tree node"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"params": {"kernel": jnp.zeros((2, 4))}}, r"params.kernel has shape \(2, 3\) in the checkpoint and \(2, 4\)"),
        ({"params": {"kernel": jnp.zeros((2, 3), jnp.int32)}}, "params.kernel is float32 in the checkpoint and int32"),
        ({"params": {}}, "params.kernel is in the checkpoint but not in this run"),
        ({"more": jnp.zeros(1)}, "more is in this run but not in the checkpoint"),
    ],
)
def test_checkpoint_of_another_model_names_the_difference(opened, change, message):
    first = opened()
    first.save(10, state(), {})
    first.wait()
    with pytest.raises(CheckpointError, match=message):
        opened().restore_newest(abstract({**state(), **change}))


def both_items(checkpoints: Checkpoints, step: int) -> None:
    checkpoints.meta(step)
    checkpoints.restore(step, abstract(state()))


@pytest.mark.parametrize("where", ["state", "meta", "digests.json"])
def test_no_damage_is_read_as_numbers(tmp_path, opened, where):
    """One bit of every file, in turn, and every file taken away."""
    first = opened()
    for step in (10, 20):
        first.save(step, state(step), {"host": {"value": 0.25}})
    first.wait()
    newest = tmp_path / "ckpt_step_20"
    files = [newest / where] if where == DIGESTS else [f for f in (newest / where).rglob("*") if f.is_file()]
    assert len(files) >= 1
    for file in files:
        content = file.read_bytes()
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 1
        for damaged in (bytes(flipped), content[:-3], b'{"a": 1}', None):
            file.unlink() if damaged is None else file.write_bytes(damaged)
            with pytest.raises(DamagedFileError, match=r"damaged|missing|no JSON"):
                both_items(opened(), 20)
            file.write_bytes(content)
    reader = opened()
    assert reader.meta(20) == {"host": {"value": 0.25}}
    assert float(reader.restore(20, abstract(state()))["params"]["kernel"][0, 0]) == 20.0


def test_checkpoints_and_boundary_files_without_digests_are_read(tmp_path, opened):
    """As earlier versions wrote them."""
    first = opened()
    first.save(10, state(1.5), {"host": {}})
    first.wait()
    (tmp_path / "ckpt_step_10" / "meta" / "metadata").write_text('{"host": {}}')
    (tmp_path / "ckpt_step_10" / DIGESTS).unlink()
    (tmp_path / "boundary_10.json").write_text(json.dumps(BOUNDARY))
    again = opened()
    assert again.restore_newest(abstract(state()))[0] == 10
    assert again.finished_boundary(10) == BOUNDARY


@pytest.mark.parametrize("damage", [b"", b"\xff\x00", b"[1]", b'{"sha256": "x", "a": 1}', b'{"a": 1}'])
def test_a_damaged_boundary_file_does_not_count(tmp_path, opened, caplog, damage):
    checkpoints = opened()
    checkpoints.finish_boundary(10, BOUNDARY)
    assert checkpoints.finished_boundary(10) == BOUNDARY
    checkpoints.boundary_file(10).write_bytes(damage)
    assert checkpoints.finished_boundary(10) is None
    assert "boundary_10.json" in caplog.text
    assert "counts as not finished" in caplog.text
