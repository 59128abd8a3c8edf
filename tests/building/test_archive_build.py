"""An archive with planted faults: every picture is used or rejected for the planted reason, components apart."""

from __future__ import annotations

import json
from collections import Counter

import h5py
import polars as pl
import pytest

from linnaeus_jax.reading import delimited
from linnaeus_jax.tools.build_dataset import main
from tests.building.archive_maker import make_archive


@pytest.mark.parametrize("occurrences", [1500, pytest.param(20_000, marks=pytest.mark.slow)])
def test_every_picture_is_used_or_rejected_for_the_planted_reason(tmp_path, monkeypatch, occurrences):
    """The larger archive is read in several blocks."""
    monkeypatch.setattr(delimited, "BLOCK", 1 << 20)
    archive = make_archive(tmp_path, occurrences)
    out = tmp_path / "out"
    arguments = ["--dwca", str(archive.path), "--pictures", str(archive.pictures), "--out", str(out), "--size", "16"]
    assert main(arguments) == 0
    totals = json.loads((out / "build.json").read_text())["totals"]
    rejected = pl.read_csv(out / "rejected.csv", infer_schema=False)
    with h5py.File(out / "labels.h5") as labels:
        used = labels["img_identifiers"].asstr()[:].tolist()
        species = labels["taxa_L10"][:]
        genus_only = {name for name, taxon in zip(used, species, strict=True) if taxon == 0}
        side, occurrence = labels["split"][:], labels["occurrence_id"].asstr()[:]
    assert totals["in"] == len(used) + len(rejected)
    assert set(used) == archive.used
    assert len(used) == len(archive.used)
    assert genus_only == archive.genus_only
    # a file that is not there is known by its address
    named = pl.coalesce(
        "picture", pl.col("detail").str.extract(r"https://example.org/(\d+/\d)$").str.replace("/", "_") + ".jpg"
    )
    reasons = dict(rejected.select(named, "reason").drop_nulls().iter_rows())
    planted = {name: reason for name, reason in archive.rejected.items() if "." in name}
    assert reasons == planted
    without = [reason for name, reason in archive.rejected.items() if "." not in name]
    without += ["malformed record"] * archive.malformed
    assert Counter(totals["rejected"]) == Counter(planted.values()) + Counter(without)
    blanked = pl.read_csv(out / "blanked.csv", infer_schema=False)
    assert Counter(blanked.select("picture", "component").iter_rows()) == archive.blanked
    assert totals["synonyms"] == archive.synonyms
    assert pl.read_csv(out / "synonyms.csv")["rows"].sum() == archive.synonyms
    sides = pl.DataFrame({"side": side, "occurrence": occurrence.tolist()}).filter(pl.col("occurrence") != "")
    assert sides.group_by("occurrence").agg(pl.col("side").n_unique())["side"].max() == 1
