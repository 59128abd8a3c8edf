"""Labels that people have corrected: which taxa they name, what is written, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from linnaeus_jax.building.steps import corrections
from linnaeus_jax.building.steps.corrections import BEFORE, LABELS, Corrected, apply_corrections, read_corrections
from linnaeus_jax.config import get_config
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.typed import typed
from linnaeus_jax.data.dataset import build_dataset
from linnaeus_jax.tools import build_dataset as tool
from linnaeus_jax.tools import change_names
from tests.building.samples import TASKS, identifiers, write_clean

IDS = identifiers()


@pytest.fixture
def folder(tmp_path) -> Path:
    """A data set, as far as corrections look at it."""
    write_clean(tmp_path / LABELS)
    (tmp_path / "build.json").write_text('{"digest": "d", "files": ["labels.h5"]}')
    return tmp_path


def write(folder: Path, text: str) -> Path:
    path = folder / "fixed.csv"
    path.write_text(text, encoding="utf-8")
    return path


def correct(folder: Path, *lines: tuple[str, str]) -> Corrected:
    text = "id,given,correct\n" + "".join(f"{name},x,{taxon}\n" for name, taxon in lines)
    return apply_corrections(folder, write(folder, text), TASKS)


def taxa(path: Path) -> np.ndarray:
    with h5py.File(path) as file:
        return np.stack([file[task][:] for task in TASKS], axis=1)


def test_a_taxon_is_given_by_name_by_id_or_as_the_list_has_it_at_any_rank(folder):
    before = taxa(folder / LABELS)
    with h5py.File(folder / LABELS) as file:
        others = {name: item[:].tolist() for name, item in file.items() if isinstance(item, h5py.Dataset)}
    lines = ("species 5", "105", "species 3 [104]", "genus 2", " exclude ", "Exclude", "species 3", "")
    found = correct(folder, *zip(IDS, lines, strict=False), (IDS[9], "species 4 [105]"))
    expected = before.copy()
    rows = [[106, 23, 4], [105, 23, 4], [104, 22, 3], [0, 23, 4], [0, 0, 0], [0, 0, 0], [104, 22, 3]]
    expected[:7] = rows
    np.testing.assert_array_equal(taxa(folder / LABELS), expected)
    np.testing.assert_array_equal(taxa(folder / BEFORE), before)
    assert before[9].tolist() == [105, 23, 4]
    assert found == Corrected(4, 2, 2)  # rows 6 and 9 were so
    with h5py.File(folder / LABELS) as file:
        assert {name: file[name][:].tolist() for name in others if name not in TASKS} == {
            name: values for name, values in others.items() if name not in TASKS
        }
        assert file[TASKS[0]].dtype == np.uint32
        (said,) = json.loads(file["metadata"].attrs["corrections"])
        assert (said["file"], said["rows"]) == ("fixed.csv", 6)
    assert json.loads((folder / "build.json").read_text())["files"] == ["labels.h5", BEFORE]


def test_a_second_list_goes_on_from_the_first_and_the_same_one_changes_nothing(folder):
    before = taxa(folder / LABELS)
    correct(folder, (IDS[0], "species 5"))
    assert correct(folder, (IDS[1], "exclude")) == Corrected(0, 1, 0)
    after = taxa(folder / LABELS)
    assert after[:2].tolist() == [[106, 23, 4], [0, 0, 0]]
    stamp = (folder / LABELS).stat().st_mtime_ns
    assert correct(folder, (IDS[1], "exclude")) == Corrected(0, 0, 1)
    assert (folder / LABELS).stat().st_mtime_ns == stamp
    np.testing.assert_array_equal(taxa(folder / BEFORE), before)
    with h5py.File(folder / LABELS) as file:
        assert len(json.loads(file["metadata"].attrs["corrections"])) == 2
    assert json.loads((folder / "build.json").read_text())["files"].count(BEFORE) == 1


def test_training_takes_corrected_labels_and_no_excluded_row(folder):
    config = get_config()
    config.data.h5.labels_path, config.data.h5.images_path = str(folder / LABELS), str(folder / "images.h5")
    config.data.task_keys_h5, config.data.meta.active = TASKS, False
    config.data.partial.levels = True
    rows = build_dataset(typed(config)).train.rows
    correct(folder, (IDS[0], "species 5"), (IDS[1], "exclude"))
    dataset = build_dataset(typed(config))
    assert dataset.train.rows.tolist() == [row for row in rows.tolist() if row != 1]
    assert dataset.train.taxa[0].tolist() == [106, 23, 4]


def test_lists_of_spreadsheets_are_read(tmp_path):
    path = tmp_path / "list.csv"
    path.write_bytes("\ufeffcorrect;id\r\nPica  pica;a\r\n;b\r\nexclude;c;more\r\n".encode())
    assert read_corrections(path) == {"a": "Pica pica", "c": "exclude"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id,given\na,b\n", "needs the columns id and correct; its columns: id, given"),
        ("", "its columns: none"),
        ("id,correct\na,\n", "the column correct is empty"),
        ("id,correct\na,b\na,c\n", "a is 'b' and 'c'; keep one"),
        ("id,correct\nother,species 1\n", "1 of 1 ids, such as 'other', are no pictures of"),
        (f"id,correct\n{IDS[0]},Species 1\n", "'Species 1' is no taxon of this data set; did you mean 'species 1'?"),
        (f"id,correct\n{IDS[0]},777\n", "'777' is no taxon of this data set; build its pictures"),
        (f"id,correct\n{IDS[0]},0\n", "'0' is no taxon"),
    ],
)
def test_a_list_that_does_not_fit_is_refused_and_nothing_is_written(text, said, folder):
    before, files = (folder / LABELS).read_bytes(), {path.name for path in folder.iterdir()}
    with pytest.raises(UserError) as error:
        apply_corrections(folder, write(folder, text), TASKS)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert (folder / LABELS).read_bytes() == before
    assert {path.name for path in folder.iterdir()} == files | {"fixed.csv"}


def test_an_end_while_it_writes_leaves_the_labels_whole(folder, monkeypatch):
    before = (folder / LABELS).read_bytes()
    replaced = corrections.replaced_file

    def ends(path: Path):
        if path.name == LABELS:
            raise KeyboardInterrupt
        return replaced(path)

    monkeypatch.setattr(corrections, "replaced_file", ends)
    with pytest.raises(KeyboardInterrupt):
        correct(folder, (IDS[0], "species 5"))
    assert (folder / LABELS).read_bytes() == before == (folder / BEFORE).read_bytes()
    monkeypatch.undo()
    assert correct(folder, (IDS[0], "species 5")) == Corrected(1, 0, 0)


def test_the_tool_takes_a_list_and_nothing_else(folder, tmp_path, capsys):
    path = write(folder, f"id,correct\n{IDS[0]},species 5\n")
    argv = ["--corrections", str(path), "--out", str(folder)]
    assert tool.main([*argv, "--min-per-class", "3"]) == 2
    assert "--min-per-class: not for --corrections" in capsys.readouterr().err
    assert tool.main(["--corrections", str(path), "--out", str(tmp_path / "none")]) == 2
    assert "has no labels.h5; name the folder of a data set" in capsys.readouterr().err
    assert tool.main(argv) == 0
    assert "1 labels corrected, 0 pictures excluded, 0 were so already" in capsys.readouterr().out
    assert taxa(folder / LABELS)[0].tolist() == [106, 23, 4]


def test_names_change_in_place_beside_or_in_another_folder(folder, capsys):
    """The rows of every taxon before and after, by what the list says; ranks and rows that it does not name stay."""
    before = taxa(folder / LABELS)
    (folder / "config.py").write_text('images = str(HERE / "images.h5")\n')
    changes = folder / "changes.csv"
    changes.write_text(
        "change,taxon,rank,to,parent,id\n"
        "rename,species 5,,Species quinta,,\nmerge,species 3,species,species 4,,\nnew,Novus,genus,,family 1,999\n"
        "move,species 0,species,,Novus,\nsplit,species 1,species,species 1 | Species alba,,\n"
    )
    out = folder / "new"
    assert change_names.main([str(changes), str(folder), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "1 renamed, 1 merged, 1 moved, 1 split, 1 new" in said
    after, expected = taxa(out / LABELS), before.copy()
    expected[before[:, 0] == 104] = after[before[:, 0] == 105][0]
    new = before[:, 0] == 101
    expected[new, 1] = 999
    expected[new, 2] = after[new, 2]
    np.testing.assert_array_equal(after, expected)
    assert f"{(after != before).any(axis=1).sum():,} rows have other taxa" in said
    with h5py.File(out / LABELS) as file, h5py.File(folder / LABELS) as old:
        names = dict(zip(file["taxon_names/taxa_L10/taxon_id"][:].tolist(), file["taxon_names/taxa_L10/name"].asstr()))
        assert (names[106], names[105]) == ("Species quinta", "species 4")
        assert 104 not in names
        assert file["img_identifiers"][:].tolist() == old["img_identifiers"][:].tolist()
        (done,) = json.loads(file["metadata"].attrs["corrections"])
        assert done["file"] == "changes.csv"
    lines = (out / "undecided.csv").read_text().splitlines()
    assert lines[0] == "id,taxon,becomes,correct"
    assert len(lines) == 1 + (before[:, 0] == 102).sum()
    assert (out / "config.py").read_text() == f"images = {str(folder.resolve() / 'images.h5')!r}\n"
    assert change_names.main([str(changes), str(folder), "--out", str(folder)]) == 0
    np.testing.assert_array_equal(taxa(folder / LABELS), after)
    np.testing.assert_array_equal(taxa(folder / BEFORE), before)
    assert change_names.main([str(changes), str(folder), "--out", str(out)]) == 2  # another data set is there
    changes.write_text("change,taxon,to\nrename,species 99,x\n")
    assert change_names.main([str(changes), str(folder), "--out", str(folder)]) == 2
    assert "changes.csv:2: 'species 99' is no taxon here" in capsys.readouterr().err
    np.testing.assert_array_equal(taxa(folder / LABELS), after)
