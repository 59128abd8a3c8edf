"""The log filter: prefixes, records, rotation, choices."""

from __future__ import annotations

import json
import logging

import pytest

from linnaeus_jax.debugging.flags import DebugFlags
from linnaeus_jax.debugging.log_filter import FilterError, is_of, prefix
from linnaeus_jax.reporting.logs import ConsoleHandler, console_level, setup_logging
from linnaeus_jax.tools import filter_logs

STAMP = "2026-01-02 03:04:05,006"


def test_prefixes(fixtures):
    for flag, expected in json.loads((fixtures / "observability_misc.json").read_text())["filter_prefix"].items():
        assert prefix(flag) == expected


def test_unknown_flag_is_an_error_with_the_nearest_name():
    with pytest.raises(FilterError, match="NUL_MASKING is no debug flag; did you mean NULL_MASKING"):
        prefix("DEBUG.LOSS.NUL_MASKING")


def test_family_of_a_prefix():
    wanted = ["[DEBUG_NULL_MASKING]"]
    assert is_of("[DEBUG_NULL_MASKING] x", wanted)
    assert is_of("[DEBUG_NULL_MASKING_INPUT] x", wanted)
    for other in ("[DEBUG_NULL_MASKINGS] x", "[DEBUG_NULL] x", "x [DEBUG_NULL_MASKING] y", "[DEBUG_null_masking] x"):
        assert not is_of(other, wanted)


@pytest.fixture
def logs(tmp_path):
    """A directory of logs: two processes, rotations, continuation lines."""

    def line(level: str, text: str) -> str:
        return f"{STAMP} {level} {text}\n"

    (tmp_path / "debug_log_rank0.txt").write_text(
        line("DEBUG", "[DEBUG_NULL_MASKING_SUMMARY] newest\n[DEBUG_NULL_MASKING_SUMMARY] second line")
        + line("INFO", "an info line")
    )
    (tmp_path / "debug_log_rank0.txt.1").write_text(line("DEBUG", "[DEBUG_NULL_MASKING_INTERNAL] newer"))
    (tmp_path / "debug_log_rank0.txt.2").write_text(line("DEBUG", "[DEBUG_NULL_MASKING_INPUT] older"))
    (tmp_path / "debug_log_rank0.txt.10").write_text(
        line("DEBUG", "[DEBUG_NULL_MASKING] oldest") + line("ERROR", "failed\nTraceback\n  File x")
    )
    (tmp_path / "h5data_debug_log_rank0.txt").write_text(
        line("DEBUG", "[h5data] [DEBUG_DATALOADER] queue") + line("DEBUG", "[DEBUG_DATALOADER] plain")
    )
    (tmp_path / "debug_log_rank1.txt").write_text(line("DEBUG", "[DEBUG_NULL_MASKING] rank one"))
    (tmp_path / "debug_log_rank10.txt").write_text(line("DEBUG", "[DEBUG_NULL_MASKING] rank ten"))
    (tmp_path / "metrics_log.jsonl").write_text("{}\n")
    return tmp_path


def text_of(logs, *arguments: str) -> list[str]:
    assert filter_logs.main([str(logs), "-o", "out.txt", *arguments]) == 0
    lines = (logs / "out.txt").read_text().splitlines()
    return [line.removeprefix(f"{STAMP} ") for line in lines if not line.startswith("==>")]


def test_documented_example_returns_all_sub_prefixes_oldest_first(logs):
    assert text_of(logs, "-f", "DEBUG.LOSS.NULL_MASKING", "-t", "debug", "-r", "0") == [
        "DEBUG [DEBUG_NULL_MASKING] oldest",
        "DEBUG [DEBUG_NULL_MASKING_INPUT] older",
        "DEBUG [DEBUG_NULL_MASKING_INTERNAL] newer",
        "DEBUG [DEBUG_NULL_MASKING_SUMMARY] newest",
        "[DEBUG_NULL_MASKING_SUMMARY] second line",
    ]


def test_block_keeps_the_rest_with_continuation_lines(logs):
    assert text_of(logs, "-b", "DEBUG.LOSS.NULL_MASKING", "DATALOADER", "-r", "0") == [
        "ERROR failed",
        "Traceback",
        "  File x",
        "INFO an info line",
    ]


def test_data_log_with_and_without_its_prefix(logs):
    assert len(text_of(logs, "-f", "dataloader")) == 2


def test_info_keeps_info_and_above(logs):
    assert text_of(logs, "-t", "info", "-r", "0") == ["ERROR failed", "Traceback", "  File x", "INFO an info line"]


def test_ranks_match_exactly(logs):
    assert text_of(logs, "-r", "1") == ["DEBUG [DEBUG_NULL_MASKING] rank one"]
    assert "==> debug_log_rank10.txt <==" in (logs / "out.txt").read_text() or len(text_of(logs, "-r", "-1")) > 5


def test_nothing_to_filter_is_exit_code_2(logs, tmp_path, capsys):
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments in ([str(empty)], [str(logs), "-r", "7"], [str(tmp_path / "no")], [str(logs), "-f", "nonsense"]):
        assert filter_logs.main(arguments) == 2
        assert capsys.readouterr().err
    assert filter_logs.main([str(logs), "-o", "debug_log_rank0.txt"]) == 2


def test_reads_what_our_logging_writes(tmp_path):
    setup_logging(tmp_path, process=0, level="WARNING", data_level="WARNING")
    try:
        (console,) = (each for each in logging.getLogger("linnaeus_jax").handlers if isinstance(each, ConsoleHandler))
        with console_level("debug"):
            assert console.level == logging.DEBUG
        assert console.level == logging.WARNING
        flags = DebugFlags(frozenset({"scheduling", "dataloader"}))
        flags.debug_line("scheduling", "one\ntwo")
        flags.debug_line("dataloader", "queue")
        logging.getLogger("linnaeus_jax").info("other")
    finally:
        setup_logging(None, process=1, level="INFO", data_level="INFO")
        for name in ("linnaeus_jax", "linnaeus_jax.data"):
            logging.getLogger(name).propagate = True
    path, count = filter_logs.filter_logs(tmp_path, flags=["SCHEDULING", "DATALOADER"])
    assert count == 2
    lines = [line for line in path.read_text().splitlines() if not line.startswith("==>")]
    assert [line.rpartition("] ")[2] for line in lines] == ["one", "two", "queue"]
