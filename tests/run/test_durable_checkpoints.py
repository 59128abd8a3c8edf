"""What a power failure, a clock that is set and a renamed checkpoint leave of the checkpoints of a run."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from orbax.checkpoint.path import atomicity

from linnaeus_jax.files import DIGESTS, UNREADABLE_CHECKPOINTS, sealed
from linnaeus_jax.run import checkpoints as module
from linnaeus_jax.run.checkpoints import CheckpointError, Checkpoints
from linnaeus_jax.run.chosen_checkpoint import read_arrays, read_meta, restore_state
from linnaeus_jax.run.retention import retention_policy

#: of an event of a call: how it is called
Event = tuple[str, str]


def state(value: float = 0.0) -> dict:
    return {"params": {"kernel": jnp.full((2, 3), value, jnp.float32)}, "step": jnp.zeros((), jnp.int32)}


def abstract(tree: dict) -> dict:
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), tree)


def host(step: int) -> dict:
    return {"progress": {"global_step": step}, "ranking": {}}


@pytest.fixture
def opened(tmp_path):
    made = []

    def make(**options) -> Checkpoints:
        made.append(Checkpoints(tmp_path / "checkpoints", **options))
        return made[-1]

    yield make
    for checkpoints in made:
        checkpoints.close()


def recorded(monkeypatch) -> list[Event]:
    """What Python's own calls sync, rename and remove, in order; names below the checkpoint's directory."""
    events: list[Event] = []
    fsync, rename, replace, rmtree = os.fsync, os.rename, os.replace, shutil.rmtree

    def synced(descriptor) -> None:
        fsync(descriptor)
        events.append(("sync", os.readlink(f"/proc/self/fd/{getattr(descriptor, 'fileno', lambda: descriptor)()}")))

    def renamed(call):
        def wrapped(source, target, **options) -> None:
            call(source, target, **options)
            events.append(("rename", os.fspath(target)))

        return wrapped

    def removed(path, *args, **options) -> None:
        events.append(("remove", os.fspath(path)))
        rmtree(path, *args, **options)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed(rename))
    monkeypatch.setattr(os, "replace", renamed(replace))
    monkeypatch.setattr(shutil, "rmtree", removed)
    return events


def test_a_checkpoint_gets_its_name_when_all_of_it_is_on_the_disk(tmp_path, opened, monkeypatch):
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "metrics_log.jsonl").write_text("a row\n")
    checkpoints = opened(policy=retention_policy(dict, 0, 1), logs=logs)
    checkpoints.save(10, state(), {"host": host(10)})
    checkpoints.wait()
    events = recorded(monkeypatch)
    checkpoints.save(20, state(), {"host": host(20)})
    checkpoints.wait()
    final = checkpoints.path(20)
    named = events.index(("rename", str(final)))
    before = {path for call, path in events[:named] if call == "sync"}
    unfinished = Path(str(final) + atomicity.TMP_DIR_SUFFIX)
    inside = [unfinished / path.relative_to(final) for path in (final, *final.rglob("*"))]
    assert len(inside) > 10
    assert {str(path) for path in (*inside, logs, logs / "metrics_log.jsonl")} <= before
    last = {path: i for i, (call, path) in enumerate(events) if call == "sync"}
    for path in inside:  # nothing is written into a directory after it was synced
        assert path.parent == checkpoints.directory or last[str(path)] < last[str(path.parent)]
    parent = events.index(("sync", str(checkpoints.directory)), named)
    deleted = [i for i, (call, path) in enumerate(events) if call == "remove" and path.endswith("ckpt_step_10")]
    assert not checkpoints.path(10).exists()
    assert named < parent < min(deleted)


def test_a_name_that_cannot_be_kept_fails_the_save_and_deletes_nothing(opened, monkeypatch):
    checkpoints = opened(policy=retention_policy(dict, 0, 1))
    checkpoints.save(10, state(), {"host": host(10)})
    checkpoints.wait()
    fsync = os.fsync

    def failing(descriptor) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(checkpoints.directory):
            raise OSError(5, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    checkpoints.save(20, state(), {"host": host(20)})
    with pytest.raises(CheckpointError, match="Input/output error"):
        checkpoints.wait()
    assert checkpoints.path(10).is_dir()


@pytest.mark.parametrize("seconds", [3600.0, 30 * 86400.0, -3600.0])
def test_the_clock_may_be_set_during_a_save(opened, monkeypatch, seconds):
    """Forward as after a suspension or by NTP, or back."""
    checkpoints, jump, real, digests = opened(), 0.0, time.time, module.PathWithDigests.finalize

    async def slow(self) -> None:
        nonlocal jump
        jump = seconds
        await digests(self)

    monkeypatch.setattr(time, "time", lambda: real() + jump)
    monkeypatch.setattr(module.PathWithDigests, "finalize", slow)
    checkpoints.save(10, state(1.0), {"host": host(10)})
    jump = seconds / 2
    checkpoints.save(20, state(2.0), {"host": host(20)})
    checkpoints.wait()
    checkpoints.check()
    assert checkpoints.steps() == [10, 20]
    assert checkpoints.restore_newest(abstract(state()))[0] == 20


def test_what_is_really_late_is_not_called_a_fault_of_the_storage():
    reason = module._reason(TimeoutError("ChainedFuture completed 0/2 futures but timed out after 1200.00 seconds."))
    assert reason.startswith("it did not come to its end (ChainedFuture completed")
    assert "if the storage or another process of the run hangs" in reason
    assert "free space" in module._reason(OSError(28, "No space left on device"))
    assert "see to the storage" in module._reason(ValueError("DATA_LOSS"))


@pytest.mark.parametrize("how", [os.rename, shutil.copytree])
def test_a_checkpoint_under_another_name_is_refused_and_the_one_before_counts(opened, caplog, how):
    first = opened()
    for step in (10, 20):
        first.save(step, state(step), {"host": {}})
    first.wait()
    how(first.path(20), first.path(30))
    again = opened()
    with pytest.raises(
        CheckpointError, match=r"ckpt_step_30 is named after update 30, but was written after update 20"
    ):
        read_meta(again, 30)
    with pytest.raises(CheckpointError, match="it was renamed or copied"):
        restore_state(again, 30, abstract(state()))
    with pytest.raises(CheckpointError, match="it was renamed or copied"):
        read_arrays(again, 30, ("params",))
    step, _, _ = again.restore_newest(abstract(state()))
    assert step == (10 if how is os.rename else 20)
    (aside,) = (again.directory.parent / UNREADABLE_CHECKPOINTS).glob("ckpt_step_30.*")
    assert "written after update 20" in json.loads((aside / "reason.json").read_text())["reason"]


def test_a_boundary_file_of_another_step_does_not_count(opened, caplog):
    checkpoints = opened()
    for step in (12, 18):
        checkpoints.finish_boundary(step, {"progress": {}, "ranking": {}})
    assert checkpoints.finished_boundary(18) == {"progress": {}, "ranking": {}}
    shutil.copy(checkpoints.boundary_file(12), checkpoints.boundary_file(18))
    assert checkpoints.finished_boundary(18) is None
    assert "boundary_18.json is named after update 18, but was written after update 12" in caplog.text
    for step, counts in ((18, True), (12, False)):  # of an earlier version
        checkpoints.boundary_file(18).write_text(json.dumps(sealed(host(step))))
        assert (checkpoints.finished_boundary(18) == host(18)) is counts


def earlier_version(path: Path) -> None:
    """Digests as they were: without a step, and without sizes."""
    digests = json.loads((path / DIGESTS).read_text())
    assert digests.pop("step") == 10
    (path / DIGESTS).write_text(json.dumps({name: digest.partition(":")[0] for name, digest in digests.items()}))


def test_checkpoints_without_a_step_are_read_with_a_line(opened, caplog):
    first = opened()
    first.save(10, state(1.0), {"host": {}})
    first.wait()
    earlier_version(first.path(10))
    again = opened()
    with caplog.at_level(logging.INFO, "linnaeus_jax"):
        assert again.newest_meta() == {"host": {}}
        assert again.restore_newest(abstract(state()))[0] == 10
    assert caplog.text.count("ckpt_step_10: an earlier version wrote it, without its step; its name counts") == 1


def test_the_host_part_tells_the_step_of_a_checkpoint_that_has_none(opened):
    first = opened()
    first.save(10, state(1.0), {"host": host(10)})
    first.wait()
    earlier_version(first.path(10))
    os.rename(first.path(10), first.path(30))
    with pytest.raises(CheckpointError, match="was written after update 10"):
        opened().restore_newest(abstract(state()))
