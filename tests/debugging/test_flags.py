"""Debug flags: reading, prefixes, cost when off, and the texts of every flag."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.debugging import due_reasons, flag_texts, loss_texts
from linnaeus_jax.debugging import flags as f
from linnaeus_jax.debugging.flag_reports import FlagReports
from linnaeus_jax.debugging.flags import FLAGS, DebugFlags
from linnaeus_jax.learning.losses import make_criterion, task_loss_sums
from linnaeus_jax.learning.update import ParameterRow
from linnaeus_jax.metrics.tracker import MetricsTracker
from linnaeus_jax.schedules.resolved import Interval
from linnaeus_jax.schedules.triggers import due_at_epoch_end, interval_fires
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
    texts = (*flag_texts.TEXTS, *loss_texts.TEXTS)
    assert {text.flag for text in texts} == set(FLAGS) - {"wandb_metrics"}
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


ROWS = [
    ParameterRow("stem.0.weight", (3, 3, 3, 8), "default", "adamw", 0.05, 1.0),
    ParameterRow("stem.0.bias", (8,), "default", "adamw", 0.0, 1.0),
    ParameterRow("head.taxa_L10.weight", (8, 5), "heads", "frozen", 0.0, 0.0),
]


def test_texts_of_components():
    text = "\n".join(
        flag_texts.checkpoint_diff_lines({"a": (2,), "b": (3,), "d": (1,)}, {"a": (2,), "b": (4,), "c": (1,)}, "x")
    )
    for part in ("1 of 3 arrays fit", "missing    c", "unexpected d", "b checkpoint (3,), model (4,)"):
        assert part in text
    text = "\n".join(flag_texts.optimizer_lines(ROWS, {"default": 1e-3}, ["overlap"]))
    for part in ("3 parameters in 2 groups", "224", "0/0.05", "frozen", "overlap: overlap"):
        assert part in text
    images = np.zeros((2, 4, 4, 3), np.float32)
    changed = images.copy()
    changed[1] = 1.0
    text = "\n".join(flag_texts.augmentation_lines([("input", images), ("flip", changed), ("erase", changed)]))
    for part in ("in this order:", "input  0 of 2", "flip   1 of 2          0.5", "erase  0 of 2"):
        assert part in text
    assert flag_texts.augmentation_lines([("input", images)])[0] == "no augmentation is on"
    named = [type("Row", (), {"name": r.name, "shape": r.shape, "layer_type": "Conv"})() for r in ROWS]
    text = "\n".join(flag_texts.model_lines("mFormerV1_tiny", named))
    assert "mFormerV1_tiny: 264 numbers" in text
    assert "84.8" in text  # percent of the stem
    assert "0 of 1" in "\n".join(f.fact_lines("processes", flag_texts.distributed_facts()))
    assert "int32[3] in [1, 3]" in "\n".join(f.fact_lines("x", {"labels": np.array([1, 2, 3], np.int32)}))


def test_texts_of_metrics():
    assert "chain" in "\n".join(flag_texts.validation_lines("val", {"chain": np.int32(3)}, {"loss": 1.5}))
    assert '"a": "NaN"' in "\n".join(f.dump_lines("state", {"a": float("nan")}))


def test_texts_of_taxonomy_and_weights():
    distance = np.array([[0, 2, np.inf], [2, 0, np.inf]])
    rows = np.array([[0.9, 0.1, 0.0], [0.1, 0.9, 0.1]])
    text = "\n".join(loss_texts.taxonomy_lines("taxa_L10", distance, rows, ["Plantae", "Animalia"], "abc".__getitem__))
    for part in (
        "2 roots: Plantae, Animalia",
        "2: 2",
        "unrelated pairs 2",
        "PROBLEM: rows must sum to 1",
        "a: a=0.9, b=0.1",
    ):
        assert part in text
    assert "of 2 of 3 classes, distances" in text
    losses = np.array([1.0, 2.0])
    assert "label" in "\n".join(loss_texts.sample_loss_lines("t", np.array([0, 2]), np.array([1, 2]), losses, str))


def test_texts_of_null_masking():
    labels = np.array([[0, 1], [2, 1], [0, 3]], np.int32)
    text = "\n".join(loss_texts.null_input_lines(labels, ["a", "b"]))
    assert "int32[3, 2]" in text
    null = labels == 0
    text = "\n".join(loss_texts.null_internal_lines(null, ~null | np.array([[True], [True], [False]]), ["a", "b"]))
    assert "a: 2 null of 3, 1 of them kept" in text
    assert "PROBLEM" not in text
    assert "PROBLEM: label masked" in "\n".join(loss_texts.null_internal_lines(null, null, ["a", "b"]))


@pytest.mark.parametrize(
    ("total", "included", "probability", "phase1", "issue"),
    [
        ((3, 1), (1, 0), 0.5, False, "none"),
        ((0, 0), (0, 0), 0.5, False, "none"),  # of a micro-batch, that says nothing
        ((9, 1), (1, 0), 0.5, False, "none"),
        ((3, 1), (1, 0), 0.5, True, "a: 1 null labels kept although none should be"),
        ((3, 1), (3, 0), 1.0, False, "b: 1 null labels masked although all should be kept"),
    ],
)
def test_suspected_issues_of_null_masking(total, included, probability, phase1, issue):
    lines = loss_texts.null_summary_lines(total, included, 9, ["a", "b"], probability=probability, phase1=phase1)
    assert [line for line in lines if issue in line and line.startswith("suspected issue: ")]


@pytest.mark.parametrize(
    ("shares", "issue"),
    [
        ({"a": 0.1, "b": 0.0}, "none"),
        ({"a": 1.0, "b": 0.0}, "a: every label is null"),
        ({"a": 0.0, "b": 0.0}, "no null label at all"),
    ],
)
def test_suspected_issues_of_the_data(shares, issue):
    (line,) = [line for line in loss_texts.null_data_lines(shares) if line.startswith("suspected issue: ")]
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
    real = weight > 0
    arrays = (label[real, 0], other[real, 0], lam[real], weights["a"], np.asarray(found.per_sample)[real, 0])
    title, *rows = loss_texts.class_weight_lines("a", *arrays, keep[real, 0], trained, "class {}".format)
    assert f"the update trains {trained:.4f}; first micro-batch, 4 of 5 rows count" in title
    assert title.endswith(f"weighted {trained:.4f}")
    assert len(rows) == 1 + len(np.unique(label[[0, 2, 3, 4]]))


def events(epoch: int, changes: Mapping[str, object] | None = None, **given: Any) -> dict[str, tuple[str, str, str]]:
    """What the boundary of `epoch` shows of a run of 10 epochs of 10 updates: event -> (setting, due, why)."""
    schedule = make_schedule(changes, epochs=10)
    ends = schedule.totals.boundaries
    due = due_at_epoch_end(schedule, epoch, ends[epoch], ends[epoch - 1] if epoch else 0)
    options: dict[str, Any] = {"validation_rows": 8, "stopped": None, **given}
    found = due_reasons.epoch_end_events(schedule, due, epoch, ends[epoch], **options)
    return {name: (setting, "DUE" if is_due else "no", why) for name, setting, is_due, why in found}


def test_every_event_of_a_boundary_is_shown_with_its_reason():
    """What is due agrees with the schedule, what is not due says why."""
    changes = {
        "schedule.validation.interval_epochs": 3,
        "schedule.validation.mask_meta_interval_steps": 25,
        "schedule.checkpoint.interval_steps": 0,
        "schedule.checkpoint.interval_epochs": 4,
    }
    first, second, third, last = (events(epoch, changes) for epoch in (0, 2, 3, 9))
    assert first["VALIDATION_NORMAL"] == ("every 3 epochs", "no", "the first epoch that counts is 3")
    assert second["VALIDATION_NORMAL"][1:] == ("no", "epoch 2 is no multiple of 3")
    assert third["VALIDATION_NORMAL"][1:] == ("DUE", "epoch 3 is a multiple of 3")
    assert second["VALIDATION_MASK_META"] == (
        "every 25 updates", "DUE", "update 25 was passed since the boundary before (20)"
    )  # fmt: skip
    assert third["VALIDATION_MASK_META"][1:] == ("no", "the next multiple after 40 is 50")
    assert first["VALIDATION_PARTIAL_MASK_META"][1] == "no"
    assert first["VALIDATION_EXHAUSTIVE"][1:] == ("no", "no components are listed")
    assert first["checkpoint"][1:] == ("no", "the first epoch that counts is 4")
    assert second["checkpoint"][1] == "DUE"
    assert "a validation is due" in second["checkpoint"][2]
    assert first["early stop"] == ("off", "no", "it is off")
    assert first["end of the run"] == ("10 epochs", "no", "10 of 100")
    assert last["end of the run"][1] == "DUE"
    assert "the last epoch has one anyway" in last["VALIDATION_NORMAL"][2]
    assert events(3, changes, validation_rows=0)["VALIDATION_NORMAL"][1:] == ("no", "there are no validation rows")
    assert events(3, changes, stopped="patience")["early stop"][1:] == ("DUE", "patience")


@pytest.mark.parametrize("mode", ["crossing", "exact"])
def test_reasons_agree_with_what_fires(mode):
    intervals = (
        Interval(),
        Interval(unit="epochs", value=1),
        Interval(unit="epochs", value=3),
        Interval(unit="steps", value=7, steps=7),
        Interval(unit="fraction", value=0.2, steps=20),
    )
    for interval in intervals:
        for epoch in range(10):
            step, previous = 10 * (epoch + 1), 10 * epoch
            why = due_reasons._interval_reason(interval, epoch, step, previous, mode)
            fires = interval_fires(interval, epoch, step, previous, mode)
            assert (" is a multiple" in why or "was passed" in why) == fires, (interval, epoch, why)


def test_values_of_a_boundary_are_shown():
    lines = due_reasons.scheduling_lines(
        40, 3, [("checkpoint", "every 4 epochs", True, "why")], {"learning rate of all": 1e-3}
    )
    assert lines == [
        "after 40 updates, epoch 3:",
        "  event       setting         due  why",
        "  checkpoint  every 4 epochs  DUE  why",
        "values of update 39, the last one made:",
        "  learning rate of all : 0.001",
    ]


def test_dumps_say_what_changed():
    """One line a value, and none for what is as it was."""
    tracker = MetricsTracker()
    tracker.update("val", {"loss": 2.0, "acc1": 0.5}, epoch=0, step=10)
    first = flag_texts.tracked_values(tracker.state_dict())
    assert len(flag_texts.changed_lines("metrics", {}, first)) == 1 + len(first)
    tracker.update("val", {"loss": 3.0, "acc1": 0.5}, epoch=1, step=20)
    title, *lines = flag_texts.changed_lines("metrics", first, flag_texts.tracked_values(tracker.state_dict()))
    assert title == f"metrics: 1 of {len(first)} values changed"
    assert lines == ["  val/loss : 3 (best 2 at epoch 0)"]
    sums = {"count": np.int32(3), "few": np.arange(3), "many": np.zeros((100, 2), np.int32)}
    assert flag_texts.sums_lines("sums", sums) == [
        "sums", "  count : 3", "  few   : [0, 1, 2]", "  many  : int32[100, 2] in [0, 0]"
    ]  # fmt: skip


def test_memory():
    kept = jnp.zeros((300, 7), jnp.float32) + 1
    memory = loss_texts.device_memory(top=5)
    assert memory["stats"] is None  # CPU
    assert any(
        shape[3] == (300, 7) and shape[0] >= kept.nbytes for shape in loss_texts.device_memory(top=10**6)["shapes"]
    )
    text = "\n".join(loss_texts.memory_lines("before", memory))
    assert "no allocator statistics" in text
    memory["stats"] = {"bytes_in_use": 2**20, "peak_bytes_in_use": 2**21}
    assert "bytes_in_use 1.0 MiB, peak_bytes_in_use 2.0 MiB" in "\n".join(loss_texts.memory_lines("after", memory))
    assert "taxa_L10" in "\n".join(loss_texts.gradnorm_lines(["taxa_L10"], {"norm": [1.0], "weight": [0.5]}))
