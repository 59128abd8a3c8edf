"""A few of the power failures, see `power.py`."""

from __future__ import annotations

import json
import random

import pytest

from linnaeus_jax import files
from linnaeus_jax.run.checkpoints import Checkpoints
from tests.campaign import power

FILES = """
import sys
from pathlib import Path
from linnaeus_jax import files
disk = Path(sys.argv[1])
if sys.argv[2] == "renamed":
    files.system.exchange = lambda *_: False
run = files.RunDirectory(disk / "runs" / "run")
run.create()
for value in (1, 2):
    with run.writing(run.metrics_log):
        files.write_json(disk / "new" / "a.json", {"a": value})
        with run.metrics_log.open("a") as file:
            file.write("a row\\n")
    with files.replaced_directory(disk / "bundles" / "bundle") as bundle:
        (bundle / "inner").mkdir()
        for name in ("file", "inner/file"):
            (bundle / name).write_text(str(value) * 100)
"""


@pytest.mark.needs("cc")
@pytest.mark.parametrize("how", ["exchanged", "renamed"])
def test_files_and_directories_are_old_or_new(tmp_path, how):
    """After every call."""
    calls = power.recorded(tmp_path, FILES, str(tmp_path / "disk"), how)
    assert calls is not None
    assert len(calls) > 50
    at_least = dict.fromkeys(("new/a.json", "bundles/bundle"), 0)
    for count in range(len(calls) + 1):
        if count and calls[count - 1].name == "sync":  # of a directory: what has its name now keeps it
            for name in at_least:
                if calls[count - 1].arguments[0].endswith("/" + name.partition("/")[0]):
                    at_least[name] = value_of(calls[:count], name)
        for seed in range(2):
            left = tmp_path / f"{count}.{seed}"
            power.failed_after(calls, count, tmp_path / "disk", f"{count}.{seed}", left)
            found, bundle = left / "new" / "a.json", left / "bundles" / "bundle"
            if at_least["new/a.json"] or found.exists():
                assert json.loads(found.read_text())["a"] >= at_least["new/a.json"]
            if how == "renamed" and not bundle.exists():  # between its two names
                bundle = next(left.glob("bundles/*.old"), bundle)
            if at_least["bundles/bundle"] or bundle.exists():
                texts = {(bundle / name).read_text() for name in ("file", "inner/file")}
                assert texts in ({"1" * 100}, {"2" * 100})
                assert int(texts.pop()[0]) >= at_least["bundles/bundle"]
            run = files.RunDirectory(left / "runs" / "run")
            run.check(run.metrics_log)
    assert set(at_least.values()) == {2}


def value_of(calls: list[power.Call], name: str) -> int:
    """How often a name was given so far."""
    return sum(c.name in ("rename", "exchange") and c.arguments[1].endswith("/" + name) for c in calls)


CHECKPOINTS = """
import sys
from pathlib import Path
from linnaeus_jax.run.retention import retention_policy
from linnaeus_jax.run.checkpoints import Checkpoints
from tests.run.test_durable_checkpoints import host, state
checkpoints = Checkpoints(Path(sys.argv[1]) / "checkpoints", retention_policy(dict, 0, 1))
for step in (6, 12, 18):
    checkpoints.save(step, state(step), {"host": host(step)})
    checkpoints.retain()
    checkpoints.finish_boundary(step, host(step))
checkpoints.close()
"""


@pytest.mark.slow
@pytest.mark.needs("cc")
def test_the_newest_checkpoint_with_its_name_is_whole(tmp_path):
    calls = power.recorded(tmp_path, CHECKPOINTS, str(tmp_path / "disk"))
    assert calls is not None
    from tests.run.test_durable_checkpoints import abstract, state

    rng = random.Random(0)
    for number in range(40):
        count, left = power.moment(calls, rng), tmp_path / str(number)
        power.failed_after(calls, count, tmp_path / "disk", number, left)
        checkpoints = Checkpoints(left / "checkpoints")
        newest = checkpoints.restore_newest(abstract(state()))
        sure = power.sure_checkpoint(calls[:count])
        assert (newest is None) <= (sure == 0), f"after {count} calls"
        if newest is not None:
            assert newest[0] == newest[1]["params"]["kernel"][0, 0] >= sure
            assert not (left / files.UNREADABLE_CHECKPOINTS).exists(), f"after {count} calls"
            checkpoints.finished_boundary(newest[0])
        checkpoints.close()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["raw", "original"])
def test_building_goes_on_to_the_same_bytes(tmp_path, form):
    for number in range(12):
        (tmp_path / str(number)).mkdir()
        outcome = power.failing_build(form, f"{number}", tmp_path / "made", tmp_path / str(number))
        assert outcome.good, outcome
