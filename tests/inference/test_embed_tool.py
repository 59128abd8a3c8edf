"""`tools.embed` from its command line to its files, and `Model.embed`."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import polars as pl
import pytest

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.taxon_names import write_taxon_names
from linnaeus_jax.inference.bundle.bundle import Bundle
from linnaeus_jax.inference.files import predicting, vector_files
from linnaeus_jax.inference.files.vector_files import FORMATS, digest_of_weights, open_vectors
from linnaeus_jax.inference.forward import FUSED, TRUNK
from linnaeus_jax.inference.model import Model, unit
from linnaeus_jax.inference.pictures import PictureError
from linnaeus_jax.tools import embed


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> SimpleNamespace:
    status = embed.main(list(arguments))
    said = capsys.readouterr()
    return SimpleNamespace(status=status, out=" ".join(said.out.split()), err=said.err)


def ids_of(out: str) -> list[str]:
    return open_vectors(Path(out)).rows["id"].to_list()


@pytest.fixture
def data(tmp_path, pictures) -> SimpleNamespace:
    """A data set of 5 rows with two ranks, the fourth without a species, and one metadata component."""
    folder = tmp_path / "data"
    folder.mkdir()
    with h5py.File(folder / "labels.h5", "w") as file:
        file["img_identifiers"] = [f"a/{row}.png" for row in range(5)]
        file["taxa_L20"], file["taxa_L10"] = np.array([21, 21, 22, 22, 0]), np.array([11, 12, 13, 0, 0])
        file["time"] = np.linspace(0, 1, 10, dtype=np.float32).reshape(5, 2)
        file["time"].attrs["column_names"] = ["month_sin", "month_cos"]
        write_taxon_names(file, "taxa_L10", [11, 12, 13], ["Parus major", "Parus minor", "Passer domesticus"])
    with h5py.File(folder / "images.h5", "w") as file:
        file["images"] = pictures.pixels[:5]
    return SimpleNamespace(folder=folder, pixels=pictures.pixels[:5])


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_file_of_vectors(shared, trained, model, capsys, suffix, dtype):
    out = f"new/v{suffix}"
    result = run(capsys, trained, "photos", "--out", out, "--dtype", dtype)
    assert result.status == 0
    assert f"new/v{suffix}: 8 vectors of 16 numbers, {dtype}, layer trunk" in result.out
    assert f"1 of 9 pictures have none, listed in new/v{suffix}.unreadable.csv" in result.out
    expected = model.embed([f"photos/{number}.png" for number in range(8)])
    found = open_vectors(Path(out))
    assert (found.shape, found.dtype, len(found)) == ((8, 16), np.dtype(dtype), 8)
    np.testing.assert_array_equal(found[:], expected.astype(dtype))
    np.testing.assert_array_equal(found[2:5], expected[2:5].astype(dtype))
    np.testing.assert_array_equal(found[np.array([7, 0, 7])], expected[[7, 0, 7]].astype(dtype))
    assert ids_of(out) == [f"photos/{number}.png" for number in range(8)]
    assert {key: found.about[key] for key in ("layer", "width", "dtype", "normalized", "title")} == {
        "layer": TRUNK,
        "width": 16,
        "dtype": dtype,
        "normalized": False,
        "title": "small",
    }
    assert len(found.about["weights"]) == len(found.about["preprocessing"]) == 64
    beside = {".npy": ["rows.csv"]}.get(suffix, [])
    names = {path.name for path in Path("new").iterdir()}
    assert names == {f"v{suffix}", *(f"v{suffix}.{what}" for what in ["about.json", "unreadable.csv", *beside])}
    assert "is complete: nothing is left to do" in run(capsys, trained, "photos", "--out", out, "--dtype", dtype).out
    refused = run(capsys, trained, "photos", "--out", out, "--dtype", dtype, "--normalize")
    assert (refused.status, refused.err.count("\n")) == (2, 1)
    assert "was begun with other inputs: normalized was false, now true" in refused.err
    assert run(capsys, trained, "photos", "--out", out, "--dtype", dtype, "--normalize", "--force").status == 0
    np.testing.assert_array_equal(open_vectors(Path(out))[:], unit(expected).astype(dtype))


def test_files_as_other_programs_read_them(shared, trained, data, capsys):
    for suffix in FORMATS:
        assert run(capsys, trained, "data", "--out", f"v{suffix}").status == 0
    with np.load("v.npz") as held:
        vectors, about = held["vectors"], json.loads(str(held["about"]))
        assert held["ids"].tolist() == [f"a/{row}.png" for row in range(5)]
        assert held["ranks"].tolist() == ["species", "genus"]
        taxa = [["Parus major", "21"], ["Parus minor", "21"], ["Passer domesticus", "22"], ["", "22"], ["", ""]]
        assert held["taxa"].tolist() == taxa
        start = held.zip.getinfo("vectors.npy").header_offset
        assert (start + 30 + len("vectors.npy") + len(held.zip.getinfo("vectors.npy").extra)) % 2 == 0
    assert vectors.shape == (5, 16)
    np.testing.assert_array_equal(np.load("v.npy"), vectors)
    with open("v.npy.rows.csv", newline="") as file:
        assert [list(row.values())[1:] for row in csv.DictReader(file)] == taxa
    frame = pl.read_parquet("v.parquet")
    assert frame.columns == ["id", "species", "genus", "vector"]
    assert frame["genus"].to_list() == [genus for _, genus in taxa]
    np.testing.assert_array_equal(frame["vector"].to_numpy(), vectors)
    assert json.loads(pl.read_parquet_metadata("v.parquet")["about"]) == about
    assert open_vectors(Path("v.npz")).rows.equals(open_vectors(Path("v.parquet")).rows)
    assert open_vectors(Path("v.npz")).rows.equals(open_vectors(Path("v.npy")).rows)


def test_vectors_of_a_data_set(shared, trained, model, data, capsys, monkeypatch):
    assert run(capsys, trained, "data/labels.h5", "--out", "v.npy", "--dtype", "float32").status == 0
    np.testing.assert_allclose(np.load("v.npy"), model.embed(list(data.pixels)), atol=1e-6)
    arguments = [trained, "data", "--dtype", "float32", "--with-metadata", "--out"]
    assert run(capsys, *arguments, "m.npy").status == 0
    time = np.linspace(0, 1, 10, dtype=np.float32).reshape(5, 2)
    fused = model.embed(list(data.pixels), with_metadata=True, components=[{"TEMPORAL": row} for row in time])
    np.testing.assert_allclose(np.load("m.npy"), fused, atol=1e-6)
    assert np.abs(np.load("m.npy") - np.load("v.npy")).max() > 1e-3
    assert run(capsys, *arguments, "1.npy", "--shard", "1/2").status == 0
    assert run(capsys, *arguments, "2.npy", "--shard", "2/2").status == 0
    parts = dict(zip(ids_of("1.npy") + ids_of("2.npy"), [*np.load("1.npy"), *np.load("2.npy")]))
    assert 0 < len(np.load("1.npy")) < 5
    np.testing.assert_allclose([parts[f"a/{row}.png"] for row in range(5)], fused, atol=1e-6)
    (shared / "files" / "a").mkdir(parents=True)
    for row in range(5):
        (shared / "photos" / f"{row}.png").rename(shared / "files" / "a" / f"{row}.png")
    assert run(capsys, *arguments, "f.npy", "--images", "files").status == 0
    np.testing.assert_allclose(np.load("f.npy"), fused, atol=1e-6)
    (shared / "files" / "a" / "2.png").write_bytes(b"no picture")
    result = run(capsys, *arguments, "f.npy", "--images", "files")
    assert "f.npy is complete, but some of its pictures have changed since; begin anew with --force" in result.err
    assert run(capsys, *arguments, "f.npy", "--images", "files", "--force").status == 0
    assert ids_of("f.npy") == [f"a/{row}.png" for row in (0, 1, 3, 4)]
    assert 'a/2.png,"the picture of row 2 cannot be read: ' in Path("f.npy.unreadable.csv").read_text()


def test_metadata_of_pictures(shared, trained, model, capsys):
    Path("t.csv").write_text("file,lat,lon\n" + "".join(f"{number}.png,5{number},13\n" for number in range(8)))
    paths = [f"photos/{number}.png" for number in range(8)]
    arguments = [trained, "photos", "--dtype", "float32", "--with-metadata"]
    assert run(capsys, *arguments, "--meta", "t.csv", "--out", "t.npy").status == 0
    expected = model.embed(paths, with_metadata=True, latitude=[50 + number for number in range(8)], longitude=13)
    np.testing.assert_allclose(np.load("t.npy"), expected, atol=1e-6)
    assert open_vectors(Path("t.npy")).about["layer"] == FUSED
    assert np.abs(expected - model.embed(paths, latitude=50, longitude=13)).max() > 1e-3
    assert run(capsys, *arguments, "--out", "e.npy").status == 0
    np.testing.assert_allclose(np.load("e.npy"), model.embed(paths), atol=1e-6)  # no EXIF data: nothing is known


@pytest.mark.parametrize("suffix", FORMATS)
def test_goes_on_where_it_stopped(shared, trained, capsys, monkeypatch, suffix):
    arguments = [trained, "photos", "--dtype", "float32", "--out"]
    run(capsys, *arguments, f"whole{suffix}")
    through, asked = predicting.over_files, []

    def stopped(model, forward, jobs, *others, **options):
        asked.append(len(jobs))
        yield from through(model, forward, jobs[:2], *others, **options)
        yield from through(model, forward, jobs[2:5], *others, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(vector_files, "over_files", stopped)
        assert run(capsys, *arguments, f"v{suffix}").status == 130
    assert not Path(f"v{suffix}").exists()
    rows = Path(f"v{suffix}.unfinished") / "vectors"
    rows.write_bytes(rows.read_bytes()[:-1])  # lost by a failure of power
    result = run(capsys, *arguments, f"v{suffix}")
    assert "going on after 2 of 9 pictures" in result.out
    one, other = (open_vectors(Path(f"{name}{suffix}")) for name in ("v", "whole"))
    np.testing.assert_allclose(one[:], other[:], atol=1e-6)
    assert one.rows.equals(other.rows)
    assert not rows.parent.exists()


def test_values_do_not_depend_on_the_batch(shared, trained, bundle, capsys):
    arguments = [trained, "photos", "--dtype", "float32", "--normalize", "--out"]
    run(capsys, *arguments, "v.npy")
    alone = Model(bundle, buckets=(1,)).embed([f"photos/{number}.png" for number in range(8)], normalize=True)
    np.testing.assert_allclose(np.load("v.npy"), alone, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "v.csv"], "v.csv must end in one of .npz, .npy, .parquet, the forms that vectors are written in"),
        (["--out", "photos"], "photos must end in one of"),
        (["--meta", "t.csv"], "--meta changes vectors with --with-metadata alone"),
        (["--images", "x.h5"], "--images and --extension are of a data set"),
        (["--batch-size", "-1"], "--batch-size and --threads are counts"),
        (["--shard", "3/2"], "3/2"),
    ],
)
def test_wrong_arguments_are_one_message(shared, trained, capsys, arguments, message):
    given = arguments if "--out" in arguments else ["--out", "v.npz", *arguments]
    result = run(capsys, trained, "photos", *given)
    assert (result.status, result.err.count("\n")) == (2, 1)
    assert message in result.err
    assert [path.name for path in shared.iterdir()] == ["photos"]


def test_a_data_set_that_cannot_be_used(shared, trained, data, capsys):
    refused = run(capsys, trained, "data", "--out", "v.npz", "--meta", "t.csv", "--with-metadata")
    assert "--meta is for pictures, but data/labels.h5 has its own metadata" in refused.err
    (data.folder / "images.h5").unlink()
    refused = run(capsys, trained, "data", "--out", "v.npz")
    assert (refused.status, refused.err.count("\n")) == (2, 1)
    assert "images.h5" in refused.err
    assert not list(shared.glob("v.npz*"))


def test_numbers_that_a_half_does_not_hold(shared, trained, model, capsys, monkeypatch):
    arguments = [trained, "photos", "--out", "v.npz"]
    giving = Model.giving

    def large(self, *layers, **options):
        forward = giving(self, *layers, **options)
        return _Scaled(forward, np.float32(1e6))

    monkeypatch.setattr(Model, "giving", large)
    refused = run(capsys, *arguments)
    assert (refused.status, refused.err.count("\n")) == (2, 1)
    assert "float16 does not hold the vectors of this model; give --dtype float32, or --normalize" in refused.err
    assert not Path("v.npz").exists()
    assert run(capsys, *arguments, "--normalize", "--force").status == 0


class _Scaled:
    """A forward pass with larger outputs."""

    def __init__(self, forward, scale) -> None:
        self._forward, self._scale = forward, scale

    def __getattr__(self, name):
        return getattr(self._forward, name)

    def dispatch(self, *arrays):
        pending = self._forward.dispatch(*arrays)
        return SimpleNamespace(result=lambda: {name: self._scale * z for name, z in pending.result().items()})


# ---- Python


def test_model_embed(model, pictures):
    vectors = model.embed(list(pictures.pixels))
    assert (vectors.shape, vectors.dtype) == ((12, 16), np.float32)
    np.testing.assert_allclose(model.embed(pictures.pixels[3]), vectors[3:4], atol=1e-6)
    assert model.embed([]).shape == (0, 16)
    lengths = np.linalg.norm(model.embed(list(pictures.pixels[:2]), normalize=True), axis=1)
    assert lengths.tolist() == pytest.approx([1, 1])
    assert unit(np.zeros((1, 3), np.float32)).tolist() == [[0, 0, 0]]
    with pytest.raises(PictureError, match="picture 1"):
        model.embed([pictures.pixels[0], b"none"])
    with pytest.raises(ValueError, match="latitude holds 1 values for 2 pictures"):
        model.embed(list(pictures.pixels[:2]), latitude=[1])
    logits = model.giving(FUSED, logits=True)(*model.forward.zeros(2))
    assert set(logits) == {*model.bundle.tasks, FUSED}
    plain = model.forward(*model.forward.zeros(2))
    np.testing.assert_allclose(logits["taxa_L10"], plain["taxa_L10"], atol=1e-5)


def test_metadata_of_a_model_that_takes_none(model, pictures):
    encoder = dataclasses.replace(model.bundle.encoder, components=())
    alone = SimpleNamespace(bundle=dataclasses.replace(model.bundle, encoder=encoder))
    with pytest.raises(UserError, match="the model takes no metadata"):
        Model.layer(alone, True)  # type: ignore[arg-type]
    assert Model.layer(alone, False) == TRUNK  # type: ignore[arg-type]


def test_the_digest_is_of_what_a_layer_is_computed_with(bundle):
    def changed(*path: str) -> Bundle:
        def swap(tree, keys):
            if not keys:
                return np.asarray(tree) + 1
            return {**tree, keys[0]: swap(tree[keys[0]], keys[1:])}

        return dataclasses.replace(bundle, variables=swap(bundle.variables, ("params", *path)))

    params = bundle.variables["params"]

    def leaf(tree) -> tuple[str, ...]:
        if not isinstance(tree, dict):
            return ()
        name = next(iter(tree))
        return (name, *leaf(tree[name]))

    trunk = next(name for name in params if not name.startswith(("head", "fusion")))
    digest = digest_of_weights(bundle, TRUNK)
    assert digest_of_weights(changed("head", *leaf(params["head"])), TRUNK) == digest
    assert digest_of_weights(changed(trunk, *leaf(params[trunk])), TRUNK) != digest
    with_fusion = dataclasses.replace(bundle, variables={"params": {**params, "fusion": np.ones(1)}})
    assert digest_of_weights(with_fusion, TRUNK) == digest
    assert digest_of_weights(with_fusion, FUSED) != digest_of_weights(bundle, FUSED)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda: Path("v.npz").unlink(), "v.npz does not exist"),
        (lambda: Path("v.npz").write_bytes(b"PK"), "v.npz is damaged, or was not written by linnaeus embed"),
        (lambda: np.savez("v.npz", vectors=np.ones((2, 16))), "v.npz is damaged, or was not written"),
        (
            lambda: Path("v.npy.rows.csv").write_text("id\nphotos/0.png\n"),
            "v.npy holds 8 vectors and 1 ids, but each needs the other; embed anew",
        ),
        (lambda: Path("v.npy").write_bytes(Path("v.npy").read_bytes()[:-3]), r"v.npy is damaged.*it ends early"),
        (lambda: Path("v.npy.about.json").unlink(), "v.npy is damaged, or was not written by linnaeus embed"),
        (lambda: np.save("v.npy", np.ones((8, 15), np.float16)), r"v.npy is damaged.*float16 \[8, 15\]"),
        (lambda: Path("v.parquet").write_bytes(b"PAR1"), "v.parquet is damaged"),
    ],
)
def test_files_that_are_no_vectors(shared, trained, capsys, spoil, message):
    name = message.split(" ")[0]
    assert run(capsys, trained, "photos", "--out", name).status == 0
    spoil()
    with pytest.raises(UserError, match=message):
        open_vectors(Path(name))
    with pytest.raises(UserError, match=r"v.csv does not end in one of \.npz"):
        open_vectors(Path("v.csv"))
