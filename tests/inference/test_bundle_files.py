"""Bundles as directories: what is read is what was written, and nothing else is accepted."""

from __future__ import annotations

import dataclasses
import json
import resource
import signal
import tracemalloc
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.exit_status import exit_status
from linnaeus_jax.files import read_sealed, sealed, sha256_of, write_json
from linnaeus_jax.inference.bundle.bundle import Calibration
from linnaeus_jax.inference.bundle.files import BUNDLE_JSON, read_bundle, write_bundle
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
    counts = bundle.taxonomy.tree.path_counts(np.array([[1, 1, 1], [0, 2, 1]]))
    write_bundle(dataclasses.replace(bundle, calibration=Calibration.none(bundle.tasks, counts)), tmp_path / "counted")
    assert read_bundle(tmp_path / "counted").calibration.path_counts == counts


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


NESTED: Any = {}
for _ in range(300):
    NESTED = {"a": NESTED}


@pytest.fixture(scope="module")
def bundle_on_disk(bundle, tmp_path_factory) -> Path:
    path: Path = tmp_path_factory.mktemp("bundles") / "a"
    write_bundle(bundle, path)
    return path


#: field of bundle.json -> values that it cannot have
WRONG: dict[tuple[Any, ...], list[Any]] = {
    ("facts",): [[], None, "x"],
    ("facts", "title"): [1, ["x"]],
    ("facts", "step"): ["x", -1, 1.5, 10**30],
    ("plugins",): [None, "x", [1]],
    ("model",): [[], None],
    ("model", "type"): [1, "NoModel"],
    ("model", "variant"): [["tiny"]],
    ("model", "rope_stages", "rope_theta"): [float("nan"), "x"],
    ("model", "convnext_stages", "depths"): [[10**6, 1], ["x"]],
    ("model", "convnext_stages", "dims"): [[8, 8, 16, 10**8]],
    ("model", "classification"): [None, NESTED],
    ("image",): [[], None, {}],
    ("image", "size"): [[32], [0, 0], [32, 64], [10**6, 10**6], "32", [32.0, 32.0]],
    ("image", "mean"): [[0.5, 0.5, float("nan")], 0.5, [0.5], ["0.5"] * 3, None],
    ("image", "std"): [[0.2, 0, 0.2], 0.2, [0.2, float("inf"), 0.2], [0.2, -0.2, 0.2], [0.2, 1e-300, 0.2], [True] * 3],
    ("image", "resize_mode"): ["stretch", None],
    ("image", "interpolation"): ["hamming", []],
    ("image", "crop_fraction"): [0.9, 0, 1.5, "1", None],
    ("image", "reduced_decode"): ["no", 1],
    ("image", "more"): [1],
    ("metadata",): [None, {}, ["TEMPORAL"]],
    ("metadata", 0, "name"): [1, "SPATIAL", "x"],
    ("metadata", 0, "columns"): ["month_sin", [], [1, 2], ["elev_0_sin", "elev_100_cos"]],
    ("date_is_midnight",): ["no", None],
    ("ranks",): [["taxa_L20"], "taxa_L10", None],
    ("calibration",): [[], None],
    ("calibration", "ranks"): [{}, {"taxa_L10": 1}, [1, 1, 1]],
    ("calibration", "paths", "taxa_L10"): [0, -1, float("nan"), float("inf"), "1", None, True],
    ("calibration", "rows"): [-1, "many", 1.5],
    ("calibration", "coverage"): [[], {"90": 1.5}, {"90": "0.5"}, {"90": float("nan")}, 0.9],
    ("calibration", "coverage_rows"): [-1, "many", 1.5],
    ("calibration", "sets"): [[], {"90": 1.5}, {"90": "0.5"}, {"90": float("nan")}, 0.9, {"90": [0.1]}, {"90": []}],
    ("calibration", "set_rows"): [-1, "many", 1.5],
    ("calibration", "set_groups"): [[0, 5], [3], [0, 0], [0, -1], 1],
    ("calibration", "path_counts"): [[], {"taxa_L10": [1]}, {"taxa_L10": 3}, {"taxa_L10": [-1, 2, 3, 4, 5]}],
    ("files",): [[], {}],
    ("files", "taxonomy.json"): [None, "x", 1],
}


def changed(tree: Any, place: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value there."""
    if not place:
        return value
    tree = tree.copy()
    tree[place[0]] = changed(tree.get(place[0]) if isinstance(tree, dict) else tree[place[0]], place[1:], value)
    return tree


def status_of_reading(path: Path) -> int:
    """With which a tool ends that reads a bundle."""

    def read() -> None:
        read_bundle(path)

    return exit_status(read)


@pytest.mark.parametrize("place", WRONG, ids=lambda place: ".".join(map(str, place)))
def test_every_field_is_checked(place, bundle_on_disk, capsys):
    """However well it is sealed; the message names file and field, and the end is one for the user."""
    about = read_sealed(bundle_on_disk / "bundle.json")
    try:
        for value in WRONG[place]:
            (bundle_on_disk / "bundle.json").write_text(json.dumps(sealed(changed(about, place, value))))
            assert status_of_reading(bundle_on_disk) == 2, value
            said = capsys.readouterr().err
            assert "bundle.json" in said or place[0] == "files"
            assert str(place[-1]) in said or place[0] in ("model", "metadata", "files")
            assert len(said) < 600
    finally:
        (bundle_on_disk / "bundle.json").write_text(json.dumps(sealed(about)))


@pytest.mark.parametrize("name", ["taxonomy.json", "class_index_map.json"])
def test_fields_of_the_taxonomy_are_checked(name, bundle_on_disk, capsys):
    about, whole = (read_sealed(bundle_on_disk / "bundle.json"), (bundle_on_disk / name).read_text())
    tree = json.loads(whole)
    wrong: dict[tuple[Any, ...], list[Any]] = {
        ("task_keys",): [None, [1], [["taxa_L10"]], tree.get("task_keys", []) * 2, [f"t{i}" for i in range(10**5)]],
        ("num_classes", "taxa_L10"): [None, 10**8, 10**30, 3],
        ("hierarchy_map_raw", "taxa_L10"): [
            [],
            {"1": float("inf")},
            {"1": 1.5},
            {"x": 1},
            {"1": 10**30},
            {"1": -1},
            {"-1": 1},
            {"01": 1},
        ],
        ("hierarchy_map_raw", "taxa_L30"): [{"1": 1}],
        ("taxon_id_to_idx", "taxa_L10", "11"): [2],
        ("taxon_id_to_idx", "taxa_L10"): [{}, None],
        ("num_classes_per_rank", "taxa_L20"): [4, 10**8],
        ("null_taxon_ids", "taxa_L10"): [None, 5],
        ("idx_to_taxon_id", "taxa_L40"): [{"0": 0}],
        ("idx_to_taxon_id", "taxa_L10", "7"): [17],
        ("metadata",): [None],
        ("idx_to_taxon_id",): [[], None],
        ("idx_to_taxon_id", "taxa_L10", "1"): [None, -1, 1.5, 10**30, 12, "x", float("nan")],
        ("idx_to_taxon_id", "taxa_L10", "0"): [7],
        ("names",): [[1], {"taxa_L10": [1]}],
    }
    texts = [
        (place, json.dumps(changed(tree, place, value)))
        for place, values in wrong.items()
        if place[0] in tree
        for value in values
    ]
    twice = next(iter(tree))
    texts.append((("twice",), f'{{"{twice}": {json.dumps(tree[twice])}, {whole.lstrip()[1:]}'))
    tracemalloc.start()
    try:
        for place, text in texts:
            (bundle_on_disk / name).write_text(text)
            digests = about["files"] | {name: sha256_of(bundle_on_disk / name)}
            (bundle_on_disk / "bundle.json").write_text(json.dumps(sealed(about | {"files": digests})))
            assert status_of_reading(bundle_on_disk) == 2, (place, text)
            assert "taxonomy.json" in (said := capsys.readouterr().err) or name in said
            assert said.count("\n") == 1
        assert tracemalloc.get_traced_memory()[1] < 200 << 20  # whatever numbers the files name
    finally:
        tracemalloc.stop()
        (bundle_on_disk / name).write_text(whole)
        (bundle_on_disk / "bundle.json").write_text(json.dumps(sealed(about)))


@pytest.mark.parametrize("room", [20_000, 85_000])
def test_a_full_disk_is_named(bundle, room, tmp_path, capsys):
    """Where the weights, and where a file after them no longer fits; nothing is left."""

    def card(folder):
        (folder / "README.md").write_bytes(bytes(100_000))

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        assert exit_status(lambda: write_bundle(bundle, tmp_path / "a", card)) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, previous)
    said = capsys.readouterr().err
    assert f"{tmp_path}/a" in said
    assert "File too large; raise the limit" in said
    assert ".tmp" not in said
    assert list(tmp_path.iterdir()) == []
