"""The command line of pack."""

from __future__ import annotations

from linnaeus_jax.tools import pack
from tests.building.samples import ROWS, write_clean, write_folder


def test_there_and_back(tmp_path, capsys):
    labels, folder = str(write_clean(tmp_path / "labels.h5")), str(write_folder(tmp_path / "pictures"))
    packed, back = str(tmp_path / "images.h5"), str(tmp_path / "back")
    assert pack.main([labels, "--images", folder, "--out", packed]) == 0
    assert f"{ROWS} pictures" in capsys.readouterr().out
    assert pack.main([labels, "--images", packed, "--out", back]) == 0
    assert len(list((tmp_path / "back").rglob("*.png"))) == ROWS


def test_errors_are_one_message(tmp_path, capsys):
    labels, folder = str(write_clean(tmp_path / "labels.h5")), str(write_folder(tmp_path / "pictures"))
    assert pack.main([labels, "--images", folder, "--out", str(tmp_path / "images.h5"), "--extension", "jpg"]) == 2
    assert "check --extension (now 'jpg')" in capsys.readouterr().err
    assert not (tmp_path / "images.h5").exists()
    assert pack.main([str(tmp_path / "none.h5"), "--images", folder, "--out", str(tmp_path / "images.h5")]) == 2
    assert "none.h5" in capsys.readouterr().err
