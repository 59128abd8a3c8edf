"""Debug flags: reading, prefixes, cost when off, and the texts of every flag."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.debugging import flag_texts
from linnaeus_jax.debugging import flags as f
from linnaeus_jax.debugging.flag_reports import FlagReports
from linnaeus_jax.debugging.flags import FLAGS, DebugFlags
from linnaeus_jax.learning.losses import make_criterion, task_loss_sums
from linnaeus_jax.metrics.tracker import MetricsTracker
from linnaeus_jax.schedules.triggers import due_at_epoch_end, events
from tests.schedules.helpers import make_schedule

NOT_FLAGS = {"crash_bundle", "nans", "infs"}  # switches of jax, without lines of their own


@pytest.fixture
def records(monkeypatch):
    """Records of both loggers as (logger, level, text)."""
    found: list[tuple[str, str, str]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append((record.name, record.levelname, record.getMessage()))

    handler = Keep()
    for name in ("linnaeus_jax", "linnaeus_jax.data"):
        logger = logging.getLogger(name)
        monkeypatch.setattr(logger, "handlers", [handler])
        monkeypatch.setattr(logger, "propagate", False)
        monkeypatch.setattr(logger, "level", logging.DEBUG)
        logger.manager._clear_cache()  # type: ignore[attr-defined]
    yield found
    logging.getLogger().manager._clear_cache()  # type: ignore[attr-defined]


def with_on(*names: str, process: int = 0) -> DebugFlags:
    config = get_config().debug
    for name in names:
        section, _, key = name.rpartition(".")
        (config[section] if section else config)[key] = True
    return DebugFlags.from_config(config, process)


def test_flags_are_the_switches_of_the_configuration():
    config = get_config().debug
    found = {key for key in config if isinstance(config[key], bool)} - NOT_FLAGS
    assert set(FLAGS) == found | {f"loss.{key}" for key in config.loss}


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_prefixes_every_line_at_level_debug(flag, records):
    with_on(flag).debug_line(flag, "first\nsecond")
    name = flag.split(".")[-1].upper()
    logger = "linnaeus_jax.data" if name == "DATALOADER" else "linnaeus_jax"
    assert records == [(logger, "DEBUG", f"[DEBUG_{name}] first\n[DEBUG_{name}] second")]


def test_sub_prefix_and_lines(records):
    with_on("loss.null_masking").debug_line("loss.null_masking", lambda: ["a", "b\nc"], "summary")
    prefix = "[DEBUG_NULL_MASKING_SUMMARY]"
    assert records[0][2].splitlines() == [f"{prefix} a", f"{prefix} b", f"{prefix} c"]


def test_off_costs_nothing(records):
    def never() -> str:
        raise AssertionError

    for flag in FLAGS:
        with_on().debug_line(flag, never)
    assert records == []


def test_unknown_paths_and_sections_are_off_with_one_warning(records):
    for flags in (with_on(), with_on("scheduling")):
        records.clear()
        for name in ("loss", "DEBUG.LOSS", "loss.nul_masking", "loss.nul_masking"):
            assert flags.on(name) is False
        assert [level for _, level, _ in records] == ["WARNING"] * 2
        assert "debug.loss.nul_masking is no debug flag" in records[1][2]


def test_documented_spelling_is_accepted():
    assert with_on("loss.null_masking").on("DEBUG.LOSS.NULL_MASKING")


def test_every_flag_has_texts_and_each_is_a_row(records, tmp_path):
    """But for the rows that go to W&B, which their sink prints."""
    assert {text.flag for text in flag_texts.TEXTS} == set(FLAGS) - {"wandb_metrics"}
    rows = (
        f.Text("retained", "scheduling", lambda it, kept, gone: [f"{it.tasks} {kept}", str(gone)], "NEW"),
        f.Text("retained", "scheduling", lambda it, kept, gone: iter(("one", "two"))),
        f.Text("saved", "scheduling", lambda *_: "not here"),
        f.Text("retained", "optimizer", lambda *_: "not on"),
    )
    FlagReports(get_config(), with_on("scheduling"), ["t"], tmp_path, rows).say("retained", [1], [2])
    assert [text for _, _, text in records] == [
        "[DEBUG_SCHEDULING_NEW] ('t',) [1]\n[DEBUG_SCHEDULING_NEW] [2]", "[DEBUG_SCHEDULING] one",
        "[DEBUG_SCHEDULING] two",
    ]  # fmt: skip


def test_other_processes_report_only_what_concerns_them():
    other = with_on(*FLAGS, process=1)
    assert other.enabled == {"distributed", "dataloader"}


class Facts(SimpleNamespace):
    """What texts need of a run."""

    def class_name(self, task: str, index: int) -> str:
        return f"{task} {index}"


def reports(tasks=("a", "b"), dumped=None, **facts: Any) -> Any:
    return SimpleNamespace(tasks=tasks, dumped=dumped or {}, facts=SimpleNamespace(dataset=Facts(**facts), **facts))


def targets(**arrays: Any) -> dict[str, np.ndarray]:
    """What the probe of the flags gives, of rows that are no padding."""
    rows = len(next(iter(arrays.values())))
    return {"weight": np.ones(rows), **{name: np.asarray(values) for name, values in arrays.items()}}


def text_of(lines: Any) -> str:
    return "\n".join(line if isinstance(line, str) else "\n".join(line) for line in lines)


def test_values_and_tables():
    shown = f.values_text("x", {"labels": np.array([1, 2, 3], np.int32), "n": 2, "rate": 0.1234567})
    assert shown == ["x", "  labels : int32[3] in [1, 3]", "  n      : 2", "  rate   : 0.123457"]
    assert f.table("t", ("name", "n"), [("a", 1), ("long", 22)]) == ["t", "  name  n", "  a     1", "  long  22"]


def test_how_a_checkpoint_fits():
    saved, needed = {"a": (2,), "b": (3,), "d": (1,)}, {"a": (2,), "b": (4,), "c": (1,)}
    title, *lines = flag_texts._checkpoint_fit(reports(), "x", saved, needed)
    assert title == "x: 1 of 3 arrays fit, 1 missing, 1 unexpected, 1 of another shape"
    assert lines == [
        "missing:", "  c : (1,)", "unexpected:", "  d : (1,)", "of another shape:",
        "  b : checkpoint (3,), model (4,)",
    ]  # fmt: skip


def test_null_labels():
    labels = np.array([[0, 1], [2, 1], [0, 3]], np.int32)
    null, kept = labels == 0, np.array([[True], [True], [False]])
    assert "int32[3, 2]" in text_of(flag_texts._null_input(reports(), targets(label=labels)))
    text = text_of(flag_texts._null_internal(reports(), targets(null=null, loss_mask=~null | kept)))
    assert "a: 2 null of 3, 1 of them kept" in text
    assert "PROBLEM" not in text
    assert "PROBLEM: label masked" in text_of(flag_texts._null_internal(reports(), targets(null=null, loss_mask=null)))


@pytest.mark.parametrize(
    ("nulls", "kept", "probability", "never", "issue"),
    [
        (2, 1, 0.5, False, "none"),
        (0, 0, 0.5, False, "none"),  # of a micro-batch, that says nothing
        (2, 1, 0.5, True, "a: 1 null labels kept although none should be"),
        (2, 1, 0.0, False, "a: 1 null labels kept although none should be"),
        (2, 1, 1.0, False, "a: 1 null labels masked although all should be kept"),
    ],
)
def test_suspected_issues_of_null_masking(nulls, kept, probability, never, issue):
    null = np.arange(3)[:, None] < [nulls, 0]
    given = targets(null=null, loss_mask=~null | (np.arange(3)[:, None] < kept))
    objective = SimpleNamespace(null_masking="always" if never else "scheduled")
    it = reports(program=SimpleNamespace(objective=objective))
    lines = flag_texts._null_summary(it, given | {"null_probability": np.array(probability)})
    assert f"suspected issue: {issue}" in lines


@pytest.mark.parametrize(
    ("percent", "issue"),
    [
        ({"a": 10.0, "b": 0.0}, "none"),
        ({"a": 100.0, "b": 0.0}, "a: every label is null"),
        ({"a": 0.0, "b": 0.0}, "no null label at all"),
    ],
)
def test_suspected_issues_of_the_data(percent, issue):
    it = reports(task_nulls_density={"train": percent})
    (line,) = [line for line in flag_texts._null_data(it) if line.startswith("suspected issue: ")]
    assert issue in line


def test_class_weights_show_the_loss_that_is_trained():
    """Masked nulls and padding do not count, and a mixed row has the weights of both its classes."""
    rng = np.random.default_rng(0)
    logits = {"a": jnp.asarray(rng.normal(size=(6, 4)), jnp.float32)}
    label, other = rng.integers(0, 4, (2, 6, 1)).astype(np.int32)
    lam = np.array([1, 1, 0.3, 0.6, 1, 1], np.float32)
    weight = np.array([1, 1, 1, 1, 1, 0], np.float32)
    keep = np.array([1, 0, 1, 1, 1, 1], bool)[:, None]
    weights = {"a": np.array([0.5, 1.0, 2.0, 4.0], np.float32)}
    found = task_loss_sums(
        logits,
        jnp.asarray(label),
        jnp.asarray(other),
        jnp.asarray(lam),
        jnp.asarray(weight),
        jnp.asarray(keep),
        {"a": make_criterion("CrossEntropyLoss", num_classes=4)},
        weights,
    )
    trained = float(found.numerator[0]) / 4  # rows 0, 2, 3 and 4
    losses = np.asarray(found.per_sample)
    given = targets(label=label, partner_label=other, lam=lam, sample_losses=losses, loss_mask=keep)
    it = reports(("a",), program=SimpleNamespace(objective=SimpleNamespace(class_weights=weights)))
    ((title, *rows),) = flag_texts._class_weights(it, given | {"weight": weight, "task_losses": np.array([trained])})
    assert f"the update trains {trained:.4f}; first micro-batch, 4 of 5 rows count" in title
    assert title.endswith(f"weighted {trained:.4f}")
    assert len(rows) == 1 + len(np.unique(label[[0, 2, 3, 4]]))


@pytest.mark.parametrize("epoch", range(10))
def test_every_event_of_a_boundary_is_shown_as_the_schedule_decides(epoch):
    changes = {
        "schedule.validation.interval_epochs": 3,
        "schedule.validation.mask_meta_interval_steps": 25,
        "schedule.checkpoint.interval_steps": 0,
        "schedule.checkpoint.interval_epochs": 4,
    }
    schedule = make_schedule(changes, epochs=10)
    ends = schedule.totals.boundaries
    due = due_at_epoch_end(schedule, epoch, ends[epoch], ends[epoch - 1] if epoch else 0)
    probabilities = SimpleNamespace(by_name=lambda: {"mixup": lambda step: 0.25})
    it = reports(
        resolved=schedule,
        program=SimpleNamespace(objective=SimpleNamespace(probabilities=probabilities)),
        learning_rates=lambda step: {"all": 1e-3},
        val=range(8),
    )
    lines = flag_texts._scheduling(it, ends[epoch], epoch, due, {})
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]
    shown = {row[0]: row[1:] for row in cells if len(row) > 2}
    for event in events(schedule):
        _, is_due, following = shown[event.stage]
        assert is_due == ("DUE" if epoch in event.epochs or (event.stage == "CHECKPOINT" and due.save) else "no")
        assert following == str(next((later for later in event.epochs if later > epoch), "never"))
    assert shown["VALIDATION_NORMAL"][0].startswith("every 3 epochs = 30 updates")
    assert shown["early stop"] == ["off", "no"]
    assert shown["end of the run"] == ["100 updates", "DUE" if epoch == 9 else "no", "9"]
    assert f"values of update {ends[epoch] - 1}, the last one made:" in lines
    assert any(line.split(" : ") == ["  learning rate of all", "0.001"] for line in lines)


def test_dumps_say_what_changed():
    """One line a value, and none for what is as it was."""
    tracker, it = MetricsTracker(), reports()
    tracker.update("val", {"loss": 2.0, "acc1": 0.5}, epoch=0, step=10)
    first = flag_texts._dump(it, 10, 0, None, {}, tracker.state_dict())
    assert len(first) == 1 + len(it.dumped)
    tracker.update("val", {"loss": 3.0, "acc1": 0.5}, epoch=1, step=20)
    title, *lines = flag_texts._dump(it, 20, 1, None, {}, tracker.state_dict())
    assert title == f"metrics after step 20: 1 of {len(it.dumped)} values changed"
    assert lines == ["  val/loss : 3 (best 2 at epoch 0)"]
    sums = {"count": np.int32(3), "few": np.arange(3), "many": np.zeros((100, 2), np.int32)}
    assert flag_texts._sums("sums", sums) == [
        "sums", "  count : 3", "  few   : [0, 1, 2]", "  many  : int32[100, 2] in [0, 0]"
    ]  # fmt: skip


def test_memory(monkeypatch):
    kept = jnp.zeros((300, 7), jnp.float32) + 1
    text = text_of(flag_texts.memory_text("before", top=10**6))
    assert "no allocator statistics" in text  # CPU
    assert str(kept.shape) in text
    stats = {"bytes_in_use": 2**20, "peak_bytes_in_use": 2**21}
    monkeypatch.setattr(jax, "local_devices", lambda: [SimpleNamespace(memory_stats=lambda: stats)])
    assert "bytes_in_use 1.0 MiB, peak_bytes_in_use 2.0 MiB" in text_of(flag_texts.memory_text("after"))
