from __future__ import annotations

import base64
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from unittest import mock

import cv2
import numpy as np
import pytest
from matplotlib.figure import Figure

from linnaeus_jax.metrics.names import CHAINS
from linnaeus_jax.reporting import report_plots
from linnaeus_jax.reporting.class_tables import CURVES_FILE, worst_class_rows
from linnaeus_jax.reporting.metrics_log import RunError, read_rows
from linnaeus_jax.reporting.mistakes import MISTAKES_FILE, thumbnail
from linnaeus_jax.reporting.page import page, table
from linnaeus_jax.reporting.report import SECTIONS, best, status, tasks_of, warnings, worth, write_report
from linnaeus_jax.reporting.report_plots import POINTS, Curve, Panel, bars, panels, schedules, thinned
from linnaeus_jax.reporting.run_record import RunRecord
from linnaeus_jax.tools import report as tool
from tests.reporting.helpers import EPOCHS, STEPS, TASKS, make_run

VOID = {"meta", "img", "br", "wbr"}


class Page(HTMLParser):
    """Headings, references and balance of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.references: list[str] = []
        self.images: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.references += [given[name] or "" for name in ("src", "href") if name in given]
        if tag == "img":
            self.images.append(given["alt"] or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made but not drawn, which takes longer than all else of a page."""
    monkeypatch.setattr(report_plots, "image", lambda figure, title: f'<img alt="{title}" src="data:image/svg+xml,">')


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "base")


def test_a_full_run_has_every_section_and_refers_to_nothing_outside(run: Path, tmp_path: Path) -> None:
    assert tool.main([str(run)]) == 0
    text = (run / "report.html").read_text()
    page = Page(text)
    assert page.headings == list(SECTIONS)
    assert "colours of the pictures alone" in text
    assert "A kernel classifier knows colour histograms, of evenly spaced rows: 3,000 of 9,000 for training." in text
    assert '<code>linnaeus train <span class="option">--config=' in text
    inside = ("#s", "data:image/svg+xml;base64,", "data:image/jpeg;base64,")
    assert all(reference.startswith(inside) for reference in page.references)
    assert "http" not in re.sub(r"base64,[^\"]*", "", text)
    assert len(page.images) == 9 + 2 * len(TASKS)
    assert "<script" not in text
    for fact in (
        "without TEMPORAL",
        "<th>species</th><th>validation rows</th>",
        "<td>Passer domesticus (house sparrow) [1005]</td>",
        '<td class="left">&lt;script&gt;alert(1)&lt;/script&gt; [1004]</td>',
        '<td>1005</td><td class="left">1004</td>',  # of a rank without names
        "is Passer domesticus (house sparrow) [1005]",
        "row 17<br>17.jpg<br><small>© J. &lt;b&gt;Doe\ufffd, CC-BY-NC 4.0, doi:10.15468/dl.abc</small>",
        "row 3<br>3.jpg</figcaption>",
        "99.50 % sure",
        "row 17",
        "<td>from 95</td>",
        "schedule:",
        "<td>taxa_L10</td><td>29</td>",  # and unknown
        "<td>unsureness [%]</td>",  # 60 - 50 times the skill of 0.8, in percent
        "<td>mean_place, genus</td>",
        "<td>20</td><td>1 - p of the best class</td>",
        "from its plan: 0.0e+00",
        "168 of 169 arrays of the model are of the file.",
    ):
        assert fact in text


@pytest.mark.usefixtures("undrawn")
def test_several_runs_stand_side_by_side_with_their_differences(run: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", skill=0.6, lr_scheduler__base_lr=3e-4)
    page = write_report([run, other], tmp_path / "both.html").read_text()
    Page(page)
    page = page.replace("<wbr>", "")
    assert "<th>base</th><th>other</th>" in page
    assert "lr_scheduler.base_lr" in page
    assert "0.0003" in page
    assert "train.seed" not in page
    assert page.count('class="best"') == 3 + len(TASKS) + 2 * len(TASKS)  # the last of the baselines of each run


@pytest.mark.usefixtures("undrawn")
def test_sections_without_data_are_left_out(run: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(run / "logs", bare / "logs")
    log = bare / "logs" / "metrics_log.jsonl"
    log.write_text("".join(line + "\n" for line in log.read_text().splitlines() if "val/" not in line))
    page = Page(write_report([bare], tmp_path / "r.html").read_text())
    assert page.headings == ["Overview", "Warnings", "Loss", "Accuracy", "Results per phase", "Gradients", "Speed"]


def without(run: Path, root: Path, drop: str, files: tuple[str, ...] = ()) -> Path:
    """A copy of a run without the metrics whose name matches, and without some files."""
    shutil.copytree(run, root)
    log = root / "logs" / "metrics_log.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    kept = [{name: value for name, value in row.items() if not re.search(drop, name)} for row in rows]
    log.write_text("".join(json.dumps(row) + "\n" for row in kept))
    for name in files:
        (root / name).unlink()
    return root


@pytest.mark.slow
def test_runs_that_lack_something_have_a_report(run: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    assets = ("assets/validation_curves.json", MISTAKES_FILE)
    lacking = {
        "metadata": without(run, tmp_path / "metadata", "mask_|val_mask"),
        "ranks": without(run, tmp_path / "ranks", "taxa_L[24]0"),
        "validation": without(run, tmp_path / "validation", "^(final_)?(core/)?val", assets),
        "labels": without(run, tmp_path / "labels", "null"),
    }
    request.getfixturevalue("undrawn")
    with pytest.MonkeyPatch.context() as patch:  # all is drawn, as test_a_full_run draws it into files

        def drawn(figure: Figure, title: str) -> str:
            figure.draw_without_rendering()
            return f'<img alt="{title}" src="data:image/svg+xml,">'

        patch.setattr(report_plots, "image", drawn)
        write_report(list(lacking.values()), tmp_path / "all.html")
    pages = {name: Page(write_report([root], root / "report.html").read_text()) for name, root in lacking.items()}
    titles = {name: set(SECTIONS) - set(page.headings) for name, page in pages.items()}
    assert titles["metadata"] == {"What each metadata component is worth"}
    assert titles["ranks"] == titles["labels"] == set()
    assert {"Confused classes", "Confident mistakes", "Worst classes", "Subsets"} <= titles["validation"]
    assert {"Loss", "Accuracy", "Results per phase"} <= set(pages["validation"].headings)
    assert "over all rows, where “unknown” is right" in (lacking["labels"] / "report.html").read_text()
    assert "over the rows whose label is known" in (lacking["ranks"] / "report.html").read_text()


def test_a_run_of_one_row_has_a_report_and_its_name_is_escaped(tmp_path: Path) -> None:
    run = tmp_path / "<script>"
    log = run / "logs" / "metrics_log.jsonl"
    log.parent.mkdir(parents=True)
    row = {"event": "train", "global_step": 1, "epoch": 0, "timestamp": 1.0, "train/loss": "NaN", "train/lr": 1e-3}
    log.write_text(json.dumps(row) + "\n")
    page = write_report([run], tmp_path / "r.html").read_text()
    assert Page(page).headings == ["Overview", "Warnings"]
    assert "unfinished after 1 updates" in page
    assert "non-finite values in 1 metrics: train/loss" in page
    assert "<script" not in page


def test_numbers_of_the_tables(run: Path) -> None:
    record = RunRecord.load(run)
    assert tasks_of([record]) == list(TASKS)
    assert status(record) == "finished"
    value = record.series("val/chain_accuracy")[1]
    assert best(record, "val/chain_accuracy", higher=True) == (pytest.approx(value.max()), EPOCHS - 1)
    assert best(record, "val/loss", higher=False) == (pytest.approx(record.series("val/loss")[1].min()), EPOCHS - 1)
    found = worth(record, TASKS)
    assert list(found) == ["all metadata", "SPATIAL", "TEMPORAL"]
    for phase, label in (("val_mask_meta", "all metadata"), ("val_mask_SPATIAL", "SPATIAL")):
        for task, points in zip(TASKS, found[label]):
            kept, masked = (record.series(f"{name}/non_null/acc1_{task}")[1][-1] for name in ("val", phase))
            assert points == pytest.approx(kept - masked)
        kept, masked = (record.series(f"{name}/chain_accuracy")[1][-1] for name in ("val", phase))
        assert found[label][-1] == pytest.approx(100 * (kept - masked))
    assert any("skipped because of non-finite values: 1" in text for text in warnings(record))
    steps, rates = record.applied_rates()["default"]
    completed, logged = record.series("train/lr/default")
    assert steps.tolist() == (completed - 1).tolist(), "an update is counted before it is made"
    assert rates.tolist() == logged.tolist()


def test_what_is_drawn_in_percent_fills_its_axes_and_percentiles_are_words(run: Path) -> None:
    for values, bottom in (
        ([[3.0, np.nan, 99.0]], 0),
        ([[96.0, 99.0], [71.5]], 70),
        ([[100.0]], 90),
        ([[np.nan], []], 0),
    ):
        low, high = report_plots.percent_limits(values)
        assert low == pytest.approx(bottom - (100 - bottom) / 50)
        assert high == pytest.approx(100 + (100 - bottom) / 50)
    page = SECTIONS["Subsets"]({"run": RunRecord.load(run)}, TASKS)
    places = [page.index(f"<td>{name}</td>") for name in ("below 5", "5–50", "50–95", "from 95")]
    assert places == sorted(places)
    assert "lt_p5" not in page


def test_thumbnails_keep_their_shape() -> None:
    data = base64.b64decode(thumbnail(np.zeros((40, 80, 3), np.uint8), 20))
    assert np.asarray(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)).shape == (10, 20, 3)


def test_accuracies_of_the_overview_are_those_of_the_table(run: Path) -> None:
    """Both are over the rows with a label, where labels can be missing."""
    record = RunRecord.load(run)
    overview, phases = (SECTIONS[name]({"run": record}, TASKS) for name in ("Overview", "Results per phase"))
    for task in TASKS:
        labelled, every = (best(record, f"val/{kind}acc1_{task}", higher=True) for kind in ("non_null/", ""))
        assert labelled is not None
        assert every is not None
        value, epoch = labelled
        assert value != every[0]
        assert f"<td>{value:.2f} ({epoch})</td>" in overview
        assert f"{value:.2f}" in phases  # the last measurement is the best of this run
    for chain in CHAINS:
        found = best(record, f"val/{chain}", higher=True)
        assert found is not None
        assert f"<td>{100 * found[0]:.2f} ({found[1]})</td>" in overview
        assert f"{100 * found[0]:.2f}" in phases


def test_keys_that_came_after_a_run_are_no_settings_of_it(run: Path, tmp_path: Path) -> None:
    earlier = tmp_path / "earlier"
    shutil.copytree(run, earlier)
    config = json.loads((earlier / "config.json").read_text())
    del config["train"]["tune_dir"], config["aug"]["color_jitter"]
    (earlier / "config.json").write_text(json.dumps(config))
    records = {name: RunRecord.load(path) for name, path in (("run", run), ("earlier", earlier))}
    alone = [SECTIONS["Settings"]({name: record}, TASKS) for name, record in records.items()]
    assert alone[0] == alone[1]
    assert "absent" not in alone[0]
    assert SECTIONS["Settings"](records, TASKS) == ""


def test_a_run_without_mistakes_has_no_worst_classes_and_no_bars_of_zeros(run: Path) -> None:
    record = RunRecord.load(run)
    curves = {
        "reliability": [[0.9, 1.0, 50]],
        "risk_coverage": [[0.5, 0.0], [1.0, 0.0]],
        "distance": {"0": 40, "2": 0, "4": 0},
        "class_counts": [[0, 4, 4], [0, 4, 4]],
    }
    perfect = {"val": dict.fromkeys(TASKS, curves)}
    kept = record.json
    with mock.patch.object(RunRecord, "json", lambda _, name: perfect if name == CURVES_FILE else kept(name)):
        assert SECTIONS["Worst classes"]({"run": record}, TASKS) == ""
        page = SECTIONS["Mistakes and confidence"]({"run": record}, TASKS)
        perfect["val"] = dict.fromkeys(TASKS, curves | {"class_counts": [[0, 4, 8], [0, 2, 4]]})
        assert [rows for _, rows, _, _ in worst_class_rows(record)[1]] == [8, 4], "of equals the larger one first"
    (figure,) = re.findall(r"base64,([^\"]+)", page)
    ticks = re.findall("<!-- (.*?) -->", base64.b64decode(figure).decode())
    assert "100" in ticks
    assert not [text for text in ticks if text.startswith(("\N{MINUS SIGN}", "-"))]


def test_gradients_of_zero_are_drawn() -> None:
    """Of one class without null; a logarithmic axis has no place for them."""
    panel = Panel("gradient norm", [Curve("run", (1, 2), (0.0, 0.0), "black")], "L2 norm", log_scale=True)
    assert "<img" in panels("gradients", [panel])


def test_a_table_without_headings_has_no_empty_row() -> None:
    assert table(["", ""], [["model", "tiny"]], left=2).count("<tr>") == 1


@pytest.mark.usefixtures("undrawn")
def test_applied_learning_rates_are_compared_with_the_plan(run: Path, tmp_path: Path) -> None:
    record = RunRecord.load(run)
    assert schedules(record)[1] == 0.0
    other = make_run(tmp_path / "other", lr_scheduler__base_lr=1e-3)
    shutil.copy(other / "assets" / "schedule_summary.json", tmp_path / "summary.json")
    moved = tmp_path / "moved"
    shutil.copytree(run, moved)
    shutil.copy(tmp_path / "summary.json", moved / "assets" / "schedule_summary.json")
    gap = schedules(RunRecord.load(moved))[1]
    assert gap is not None
    assert gap > 0.1


def test_rows_are_read_back(run: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    lines = (run / "logs" / "metrics_log.jsonl").read_text().splitlines()
    log.write_text("\n".join([*lines, lines[0][:20]]))
    rows = read_rows(log)
    assert len(rows) == len(lines)
    assert rows[-1].step == STEPS * EPOCHS
    log.write_text("\n".join([lines[0][:20], *lines]))
    with pytest.raises(RunError, match="line 1 is no row of a metrics log"):
        read_rows(log)
    log.write_text(json.dumps({"event": "train", "global_step": 1, "epoch": 0, "timestamp": 0, "a": "-Infinity"}))
    assert read_rows(log)[0].values["a"] == -np.inf


def test_wrong_directories_are_named(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main([str(tmp_path)]) == 2
    assert f"{tmp_path}/logs/metrics_log.jsonl does not exist" in capsys.readouterr().err
    assert tool.main([str(run), str(run), f"--out={tmp_path / 'r.html'}"]) == 2
    assert "the same run is given twice" in capsys.readouterr().err
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "metrics_log.jsonl").touch()
    with pytest.raises(RunError, match="has no row yet"):
        write_report([tmp_path], tmp_path / "r.html")


def test_long_curves_are_thinned_to_means() -> None:
    x, y = np.arange(10 * POINTS), np.ones(10 * POINTS)
    short_x, short_y = thinned(x, y)
    assert len(short_x) == POINTS
    assert short_x[0] == pytest.approx(4.5)
    assert np.allclose(short_y, 1)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", ["assets/class_to_idx.json", "assets/validation_curves.json"])
@pytest.mark.parametrize("content", ['{"val": 7}', '{"val": {"taxa_L10": 3}, "taxa_L10": 3}'])
def test_a_file_of_another_shape_is_named(run, tmp_path, capsys, name, content):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (copy / name).write_text(content)
    status = tool.main([str(copy), f"--out={tmp_path / 'out.html'}"])
    if status != 0:  # no section needs what is wrong there
        assert status == 2
        assert f"{copy / name}" in capsys.readouterr().err
        assert not (tmp_path / "out.html").exists()


@pytest.mark.parametrize("name", ["config.json", "assets/schedule_summary.json", "assets/taxon_names.json"])
@pytest.mark.parametrize("content", [b"", b"{ not JSON", bytes(range(256)), b"[1, 2]"])
def test_a_damaged_file_of_a_run_is_one_message(run, tmp_path, capsys, name, content):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (copy / name).write_bytes(content)
    assert tool.main([str(copy), f"--out={tmp_path / 'out.html'}"]) == 2
    assert f"{copy / name} " in capsys.readouterr().err
    assert not (tmp_path / "out.html").exists()


def test_dollars_in_names_are_no_formulas() -> None:
    """A pair of them would be one for matplotlib, and a wrong one an error."""
    name = r"$\frac$ at 5$"
    assert "<img" in bars(name, [name, "b"], {name: [1.0, 2.0]}, "y", "x")


def test_texts_of_a_page_are_neither_markup_nor_commands() -> None:
    """A page may be looked at in a terminal, too."""
    text = page("<a>\x1b", {"<b>": table(["<c>"], [["<d>\x1b[2J\u202e"]])})
    assert "&lt;d&gt;\\x1b[2J\\u202e" in text
    assert "&lt;a&gt;\\x1b" in text
    assert not {"<a>", "<b>", "<c>", "<d>"} & set(re.findall("<.>", text))


def test_reliability_joins_no_bins_of_a_few_rows(monkeypatch):
    drawn: list[report_plots.Panel] = []
    monkeypatch.setattr(report_plots, "panels", lambda title, content, **_: drawn.extend(content))
    report_plots.confidence({"fine": {"reliability": [[0.3, 1.0, 2], [0.6, 0.5, 40], [0.8, 0.9, 50]]}})
    joined, alone, _ = drawn[0].curves
    assert (joined.label, joined.dash, list(joined.x)) == ("fine", "-", [60.0, 80.0])
    assert (alone.label, alone.dash, list(alone.y)) == ("", "none", [100.0])
