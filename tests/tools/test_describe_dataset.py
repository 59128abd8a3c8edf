"""The command line of describe_dataset."""

from __future__ import annotations

from linnaeus_jax.tools import describe_dataset
from tests.building.samples import write_clean, write_folder


def test_text_page_and_figures(tmp_path, capsys):
    labels, folder = str(write_clean(tmp_path / "labels.h5")), str(write_folder(tmp_path / "pictures"))
    out = tmp_path / "out"
    assert describe_dataset.main([labels, "--images", folder, "--out", str(out)]) == 0
    text = capsys.readouterr().out
    for words in ("60 rows", "species", "classes of genus", "CC BY 4.0", "observers", "dataset.html and 8 figures"):
        assert words in text
    assert (out / "dataset.html").is_file()


def test_errors_are_one_message(tmp_path, capsys):
    assert describe_dataset.main([str(tmp_path / "none.h5"), "--out", str(tmp_path / "out")]) == 2
    assert "no such labels file" in capsys.readouterr().err
    labels = str(write_clean(tmp_path / "labels.h5"))
    assert describe_dataset.main([labels, "--images", str(tmp_path / "x.h5"), "--out", str(tmp_path / "out")]) == 2
    assert "x.h5" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
