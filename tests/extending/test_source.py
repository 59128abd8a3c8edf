"""A source of data sets in one file of the user's own: its options, a build, and what is refused."""

from __future__ import annotations

import pytest

from linnaeus_jax.building.sources import source
from linnaeus_jax.data.labels import read_label_tables
from linnaeus_jax.tools import build_dataset
from tests.building.helpers import write_pictures
from tests.extending.common import EXAMPLES

PLUGINS = ("--plugins", str(EXAMPLES / "source_example.py"))
NAMES = ("parus_major", "parus_ater", "fringilla_coelebs")


@pytest.fixture(autouse=True)
def without_its_options_afterwards(monkeypatch):
    monkeypatch.setattr(source, "SOURCES", dict(source.sources()))


def test_a_data_set_is_built_from_it(tmp_path, capsys):
    pictures, out = tmp_path / "pictures", tmp_path / "out"
    for index, name in enumerate(write_pictures(pictures, 12)):
        (pictures / name).rename(pictures / f"{NAMES[index % 3].replace('_', '-')}-{index}.jpg")
    assert not build_dataset.main([*PLUGINS, "--named", str(pictures), "--between=-", "--size=32", "--out", str(out)])
    labels, tasks = str(out / "labels.h5"), ("taxa_L10", "taxa_L20")
    _, classes = read_label_tables([labels], tasks, (), null_possible=False)
    assert [len(classes[task]) for task in tasks] == [3, 2]
    with pytest.raises(SystemExit):
        build_dataset.main([*PLUGINS, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "--named DIR pictures named genus_species_number.jpg" in shown
    assert "--named: what stands between the words of a name" in shown


def test_its_options_are_its_own(tmp_path, capsys):
    for given, wrong in (
        (("--folders", "x", "--between=-"), "--between: not for --folders"),
        (("--named", "x", "--exif"), "--exif: not for --named"),
    ):
        assert build_dataset.main([*PLUGINS, *given, "--out", str(tmp_path / "out")]) == 2
        assert wrong in capsys.readouterr().err


def test_an_option_is_taken_once(tmp_path, capsys):
    (tmp_path / "other.py").write_text((EXAMPLES / "source_example.py").read_text().replace("--named", "--folders"))
    assert build_dataset.main(["--plugins", str(tmp_path / "other.py"), "--folders", "x", "--out", "y"]) == 2
    assert "--folders is a source already; choose another option" in capsys.readouterr().err
