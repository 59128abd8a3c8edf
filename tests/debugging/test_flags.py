"""Debug flags: reading, prefixes, cost when off, and the texts of every flag."""

from __future__ import annotations

import logging

import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.config.defaults import debug
from linnaeus_jax.debugging import flags as f
from linnaeus_jax.debugging.flags import FLAGS, DebugFlags
from linnaeus_jax.learning.optimizers import ParameterRow

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
    config = debug()
    for name in names:
        section, _, key = name.rpartition(".")
        (config[section] if section else config)[key] = True
    return DebugFlags.from_config(config, process)


def test_flags_are_the_switches_of_the_configuration():
    config = debug()
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


def test_other_processes_report_only_what_concerns_them():
    other = with_on(*FLAGS, process=1)
    assert other.enabled == {"distributed", "dataloader"}


ROWS = [
    ParameterRow("stem.0.weight", (3, 3, 3, 8), "default", "adamw", 0.05, 1.0),
    ParameterRow("stem.0.bias", (8,), "default", "adamw", 0.0, 1.0),
    ParameterRow("head.taxa_L10.weight", (8, 5), "heads", "frozen", 0.0, 0.0),
]


def test_texts_of_components():
    text = "\n".join(f.scheduling_lines(40, 1, {"validation": True}, {"lr": 1e-3}, {"validation": "every 20 updates"}))
    assert "validation" in text
    assert "DUE every 20 updates" in text
    text = "\n".join(f.checkpoint_diff_lines({"a": (2,), "b": (3,), "d": (1,)}, {"a": (2,), "b": (4,), "c": (1,)}, "x"))
    for part in ("1 of 3 parameters fit", "missing    c", "unexpected d", "b checkpoint (3,), model (4,)"):
        assert part in text
    text = "\n".join(f.optimizer_lines(ROWS, {"default": 1e-3}, ["overlap"]))
    for part in ("3 parameters in 2 groups", "224", "0/0.05", "frozen", "overlap: overlap"):
        assert part in text
    images = np.zeros((2, 4, 4, 3), np.float32)
    changed = images.copy()
    changed[1] = 1.0
    text = "\n".join(f.augmentation_lines([("input", images), ("flip", changed), ("erase", changed)]))
    for part in ("in this order:", "input  0 of 2", "flip   1 of 2          0.5", "erase  0 of 2"):
        assert part in text
    assert f.augmentation_lines([("input", images)])[0] == "no augmentation is on"
    named = [type("Row", (), {"name": r.name, "shape": r.shape, "layer_type": "Conv"})() for r in ROWS]
    text = "\n".join(f.model_lines("mFormerV1_tiny", named))
    assert "mFormerV1_tiny: 264 numbers" in text
    assert "84.8" in text  # percent of the stem
    assert "0 of 1" in "\n".join(f.fact_lines("processes", f.distributed_facts()))
    assert "int32[3] in [1, 3]" in "\n".join(f.fact_lines("x", {"labels": np.array([1, 2, 3], np.int32)}))


def test_texts_of_metrics():
    assert "chain" in "\n".join(f.validation_lines("val", {"chain": np.int32(3)}, {"loss": 1.5}))
    assert '"a": "NaN"' in "\n".join(f.dump_lines("state", {"a": float("nan")}))


def test_texts_of_taxonomy_and_weights():
    distance = np.array([[0, 2, np.inf], [2, 0, np.inf]])
    rows = np.array([[0.9, 0.1, 0.0], [0.1, 0.9, 0.1]])
    text = "\n".join(f.taxonomy_lines("taxa_L10", distance, rows, ["Plantae", "Animalia"], ["a", "b"]))
    for part in ("2 roots: Plantae, Animalia", "2: 2", "unrelated pairs 2", "PROBLEM: rows must sum to 1", "a: 0=0.9"):
        assert part in text
    losses = np.array([1.0, 2.0])
    text = "\n".join(f.class_weight_lines("taxa_L10", np.array([0, 2]), np.array([1.0, 5.0, 0.5]), losses))
    assert "mean loss 1.5000, weighted 1.0000" in text
    assert len(text.splitlines()) == 4  # only classes that are present
    assert "label" in "\n".join(f.sample_loss_lines("t", np.array([0, 2]), np.array([1, 2]), losses))


def test_texts_of_null_masking():
    labels = np.array([[0, 1], [2, 1], [0, 3]], np.int32)
    text = "\n".join(f.null_input_lines(labels, ["a", "b"]))
    assert "int32[3, 2]" in text
    null = labels == 0
    text = "\n".join(f.null_internal_lines(null, ~null | np.array([[True], [True], [False]]), ["a", "b"]))
    assert "a: 2 null of 3, 1 of them kept" in text
    assert "PROBLEM" not in text
    assert "PROBLEM: label masked" in "\n".join(f.null_internal_lines(null, null, ["a", "b"]))


@pytest.mark.parametrize(
    ("total", "included", "probability", "phase1", "issue"),
    [
        ((3, 1), (1, 0), 0.5, False, "none"),
        ((9, 1), (1, 0), 0.5, False, "a: every label is null"),
        ((3, 1), (1, 0), 0.5, True, "a: 1 null labels kept although none should be"),
        ((3, 1), (3, 0), 1.0, False, "b: 1 null labels masked although all should be kept"),
        ((0, 0), (0, 0), 0.5, False, "no null label at all"),
    ],
)
def test_suspected_issues_of_null_masking(total, included, probability, phase1, issue):
    lines = f.null_summary_lines(total, included, 9, ["a", "b"], probability=probability, phase1=phase1)
    assert [line for line in lines if issue in line and line.startswith("suspected issue: ")]


def test_memory():
    kept = jnp.zeros((300, 7), jnp.float32) + 1
    memory = f.device_memory(top=5)
    assert memory["stats"] is None  # CPU
    assert any(shape[3] == (300, 7) and shape[0] >= kept.nbytes for shape in f.device_memory(top=10**6)["shapes"])
    text = "\n".join(f.memory_lines("before", memory))
    assert "no allocator statistics" in text
    memory["stats"] = {"bytes_in_use": 2**20, "peak_bytes_in_use": 2**21}
    assert "bytes_in_use 1.0 MiB, peak_bytes_in_use 2.0 MiB" in "\n".join(f.memory_lines("after", memory))
    assert "taxa_L10" in "\n".join(f.gradnorm_lines(["taxa_L10"], {"norm": [1.0], "weight": [0.5]}))
