"""Bundles as directories: what is read is what was written, and nothing else is accepted."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import jax
import numpy as np
import pytest

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.files import read_sealed, sealed, sha256_of, write_json
from linnaeus_jax.inference.bundle_files import BUNDLE_JSON, read_bundle, write_bundle
from linnaeus_jax.inference.model import Model


def test_reading_is_the_inverse_of_writing(bundle, model, pictures, tmp_path):
    write_bundle(bundle, tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "moved")
    read = read_bundle(tmp_path / "moved")
    jax.tree.map(np.testing.assert_array_equal, read.variables, bundle.variables)
    assert read.encoder == bundle.encoder
    assert read.preprocessing == bundle.preprocessing
    assert read.calibration == bundle.calibration
    given: dict[str, Any] = {"latitude": 52.5, "longitude": 13.4, "date": "2024-05-17", "elevation": 34}
    again = Model(read, buckets=(8,)).predict(list(pictures.pixels[:5]), **given)
    for one, other in zip(model.predict(list(pictures.pixels[:5]), **given), again, strict=True):
        assert [taxon.label for taxon in one.path] == [taxon.label for taxon in other.path]
        assert one.path[-1].probability == pytest.approx(other.path[-1].probability, abs=1e-5)
        assert one.inputs == ("TEMPORAL", "SPATIAL", "ELEVATION")


def test_a_changed_file_is_refused(bundle, tmp_path):
    write_bundle(bundle, tmp_path / "a")
    with pytest.raises(UserError, match="holds a bundle; replace it with --force"):
        write_bundle(bundle, tmp_path / "a")
    path = tmp_path / "a" / "class_index_map.json"
    path.write_text(path.read_text().replace("Parus major", "Parus minor"))
    with pytest.raises(UserError, match=r"class_index_map.json is not the file that was written"):
        read_bundle(tmp_path / "a")
    about = json.loads((tmp_path / "a" / "bundle.json").read_text())
    (tmp_path / "a" / "bundle.json").write_text(json.dumps(about | {"format_version": 99}))
    with pytest.raises(UserError, match="format version 99, this program reads 1"):
        read_bundle(tmp_path / "a")


@pytest.mark.parametrize("name", ["../outside", "{absolute}", "linked"])
def test_a_bundle_holds_all_of_its_files(bundle, tmp_path, name):
    """One whose list names a file elsewhere, by any way, is refused."""
    write_bundle(bundle, tmp_path / "a")
    (tmp_path / "outside").write_text("mine")
    (tmp_path / "a" / "linked").symlink_to(tmp_path / "outside")
    about = read_sealed(tmp_path / "a" / BUNDLE_JSON)
    listed = name.format(absolute=tmp_path / "outside")
    about["files"][listed] = sha256_of(tmp_path / "outside")
    write_json(tmp_path / "a" / BUNDLE_JSON, sealed(about))
    with pytest.raises(UserError, match=f"lists '{listed}', which lies outside of the bundle"):
        read_bundle(tmp_path / "a")


@pytest.mark.parametrize("digest", [5, None, "x:y", ["a"]])
def test_a_digest_that_is_none_is_refused(bundle, tmp_path, digest):
    write_bundle(bundle, tmp_path / "a")
    about = read_sealed(tmp_path / "a" / BUNDLE_JSON)
    about["files"]["taxonomy.json"] = digest
    write_json(tmp_path / "a" / BUNDLE_JSON, sealed(about))
    with pytest.raises(UserError, match=r"taxonomy.json is not the file that was written into the bundle"):
        read_bundle(tmp_path / "a")


def test_plugins_are_imported_only_where_the_reader_names_them(bundle, tmp_path):
    plugin, ran = tmp_path / "evil.py", tmp_path / "ran"
    plugin.write_text(f"from pathlib import Path\nPath({str(ran)!r}).touch()\n")
    write_bundle(dataclasses.replace(bundle, plugins=(str(plugin),)), tmp_path / "a")
    assert read_bundle(tmp_path / "a").plugins == (str(plugin),)
    assert not ran.exists()
    about = read_sealed(tmp_path / "a" / "bundle.json")
    about["model"]["type"] = "MyModel"
    (tmp_path / "a" / "bundle.json").write_text(json.dumps(sealed(about)))
    with pytest.raises(UserError, match=r"made with the plugins .*evil\.py: name those .* by --plugins"):
        read_bundle(tmp_path / "a")
    assert not ran.exists()
    with pytest.raises(UserError, match="MyModel"):
        read_bundle(tmp_path / "a", [str(plugin)])
    assert ran.exists()


def test_no_damage_is_read(bundle, tmp_path):
    """Of every file: one bit, its end, all of it; and something else in its place."""

    def card(folder):
        (folder / "README.md").write_text("# A card\n")

    write_bundle(bundle, tmp_path / "a", card)
    for file in sorted(path for path in (tmp_path / "a").rglob("*") if path.is_file()):
        content = file.read_bytes()
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 1
        for damaged in (bytes(flipped), content[: len(content) // 2], b"", b"[1, 2]", bytes(range(256)), None):
            file.unlink() if damaged is None else file.write_bytes(damaged)
            with pytest.raises(UserError):
                read_bundle(tmp_path / "a")
            file.write_bytes(content)
    read_bundle(tmp_path / "a")
