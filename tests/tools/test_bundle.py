"""The tool that makes bundles, and what a bundle does far from its run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from linnaeus_jax.data.image_sources import open_split
from linnaeus_jax.inference.bundle.bundle import bundle_of_run
from linnaeus_jax.inference.bundle.files import read_bundle
from linnaeus_jax.inference.model import load
from linnaeus_jax.inference.paths import log_softmax
from linnaeus_jax.inference.quality.measuring import WITH, WITHOUT, read_rows
from linnaeus_jax.run.evaluate import load as evaluation_of
from linnaeus_jax.tools import bundle as tool
from linnaeus_jax.tools import evaluate
from tests.npz import load_npz
from tests.run.saved_run import contents, save_run
from tests.step import toy
from tests.tiny import tiny_config


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("bundle")
    return root / "run", save_run(root / "run", tiny_config(root / "data"), {3: 0.2, 8: 0.1})


@pytest.mark.slow
def test_without_data(saved, tmp_path, capsys):
    run, states = saved
    before = contents(run)
    (run.parent / "data").rename(run.parent / "elsewhere")
    try:
        assert tool.main([str(run), str(tmp_path / "b"), "--without-data", "--licence", "CC0"]) == 0
        assert "after 3 updates, not calibrated" in capsys.readouterr().out
        assert tool.main([str(run), str(tmp_path / "c")]) == 2
        assert "use --without-data" in capsys.readouterr().err
    finally:
        (run.parent / "elsewhere").rename(run.parent / "data")
    read = read_bundle(tmp_path / "b")
    assert read.facts["licence"] == "CC0"
    kernel = states[3].params["head"]["taxa_L10"]["fc"]["kernel"]
    np.testing.assert_array_equal(read.variables["params"]["head"]["taxa_L10"]["fc"]["kernel"], kernel)
    assert contents(run) == before
    assert tool.main([str(run), str(tmp_path / "b"), "--without-data", "--checkpoint=newest"]) == 2
    assert "replace it with --force" in capsys.readouterr().err
    assert tool.main([str(run), str(tmp_path / "b"), "--without-data", "--checkpoint=newest", "--force"]) == 0
    assert read_bundle(tmp_path / "b").facts["step"] == 8
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_errors_write_nothing(saved, tmp_path, capsys):
    run, _ = saved
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    for arguments, words in (
        ([tmp_path, tmp_path / "b"], "give the directory of a run"),
        ([run, tmp_path / "full", "--force"], "exists and is no bundle"),
        ([run, tmp_path / "b", "--checkpoint", "7"], "no checkpoint '7'"),
        ([run, tmp_path / "b", "--weights", "ema"], "kept no moving average"),
    ):
        assert tool.main([*map(str, arguments), "--without-data"]) == 2
        assert words in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


@pytest.mark.slow
def test_validation_rows_without_finite_outputs_are_left_out_and_counted(tmp_path, one_device, capsys):
    """First of a few rows whose metadata are too large, then of all."""
    config = tiny_config(tmp_path / "data")
    run = tmp_path / "run"
    save_run(run, config, {3: 0.2})
    assert evaluate.main([str(run), "--json"]) == 0
    capsys.readouterr()
    labels = Path(config.data.h5.labels_path)
    with h5py.File(labels, "r+") as file:
        file["spatial"][::3] = 3e38
    for tool_, arguments in ((tool, [str(tmp_path / "b")]), (evaluate, ["--json"])):
        assert tool_.main([str(run), *arguments]) == 2
        said = capsys.readouterr()
        assert "outputs of the model are not finite" in " ".join((said.out + said.err).split())
        if tool_ is evaluate:
            json.loads(said.out, parse_constant=pytest.fail)
    assert read_bundle(tmp_path / "b").facts["measured"]["not_finite"] > 0
    with h5py.File(labels, "r+") as file:
        file["spatial"][:] = 3e38
    assert tool.main([str(run), str(tmp_path / "c")]) == 2
    assert "has an answer: the outputs of the model are not finite" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_rows_whose_pictures_are_gone_are_left_out(tmp_path, monkeypatch, one_device, capsys):
    """Of a run that trains without them; labels stay beside the outputs of their own rows, and these are of the weights
    of the bundle, be they the moving average or not."""
    toy.register(monkeypatch, toy.ToyWithHeads)
    small = {"train__ema__enabled": True, "model__type": "toy", "model__convnext_stages__dims": (4, 4, 8, 8)}
    config = tiny_config(tmp_path / "data", data__hybrid__file_extension=".png", **small)
    config.data.hybrid.use_hybrid = config.data.hybrid.allow_missing_images = True
    config.data.hybrid.images_dir = str(tmp_path)
    with h5py.File(config.data.h5.images_path) as file, h5py.File(config.data.h5.labels_path, "r+") as labels:
        for number, pixels in enumerate(file["images"][:]):
            Image.fromarray(pixels).save(tmp_path / f"image_{number}.png")
        labels["img_identifiers"][:] = [f"image_{number}" for number in range(len(file["images"]))]
    save_run(tmp_path / "run", config, {3: 0.2})
    bundle = bundle_of_run(tmp_path / "run")
    whole, dataset = read_rows(bundle, novelty=True), evaluation_of(tmp_path / "run").dataset
    lost = [3, 7]
    for split in (dataset.val, dataset.train):
        for row in split.rows[lost]:
            (tmp_path / f"image_{row}.png").write_bytes(b"no picture")
    found = read_rows(bundle, novelty=True)
    assert (whole.total, found.total, len(found.labels)) == (24, 24, 22)
    np.testing.assert_array_equal(found.labels, np.delete(whole.labels, lost, axis=0))
    for of_one, of_other in ((found.logits[WITH], whole.logits[WITH]), (found.features, whole.features)):
        for name, values in of_one.items():
            np.testing.assert_allclose(values, np.delete(of_other[name], lost, axis=0), atol=1e-5)
    assert found.trained is not None
    assert len(found.trained[1]) == len(dataset.train) - 2 == len(next(iter(found.trained[0].values())))
    last = read_rows(bundle_of_run(tmp_path / "run", weights="last"))
    assert all(np.abs(z - found.logits[WITH][task]).max() > 0.1 for task, z in last.logits[WITH].items())
    assert tool.main([str(tmp_path / "run"), str(tmp_path / "b")]) == 0
    assert "calibrated on 22 validation rows" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_of_several_runs(tmp_path, one_device, capsys):
    """Calibrated on what they say together of the rows that none was trained on."""
    stages = ("convnext_stages__dims", "convnext_stages__depths", "rope_stages__depths", "rope_stages__num_heads")
    small: dict[str, Any] = {f"model__{key}": () for key in stages} | {"model__type": "ViT"}
    small |= {"model__vit__patch_size": 16, "model__vit__depth": 2, "model__vit__dim": 24}
    save_run(tmp_path / "one", tiny_config(tmp_path / "data", **small), {3: 0.2})
    save_run(tmp_path / "two", tiny_config(tmp_path / "data", train__seed=1, **small), {4: 0.2})
    save_run(tmp_path / "other", tiny_config(tmp_path / "data", data__h5__train_val_split_seed=7, **small), {5: 0.2})
    one, two, other, out = (str(tmp_path / name) for name in ("one", "two", "other", "b"))
    assert tool.main([one, other, out]) == 2
    assert "other was trained on or validated by other rows than" in " ".join(capsys.readouterr().err.split())
    assert tool.main([one, other, out, "--without-data"]) == 0
    assert tool.main([one, one, str(tmp_path / "c")]) == 2
    assert "have the same weights; give each run once" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "c").exists()
    assert tool.main([one, two, out, "--force"]) == 0
    assert "after 3 and 4 updates, calibrated on 24 validation rows" in " ".join(capsys.readouterr().out.split())
    bundle, runs = read_bundle(tmp_path / "b"), [bundle_of_run(Path(run)) for run in (one, two)]
    assert bundle.statistics is not None or not bundle.calibration.novelty
    together, alone = read_rows(bundle, runs=runs, novelty=True), [read_rows(run, novelty=True) for run in runs]
    for phase in (WITH, WITHOUT):
        for task, z in together.logits[phase].items():
            mean = np.mean([log_softmax(each.logits[phase][task]) for each in alone], axis=0)
            np.testing.assert_allclose(z, mean, atol=1e-4)
    assert together.trained is not None
    for found, of_each in (
        (together.features, [each.features for each in alone]),
        (together.trained[0], [each.trained[0] for each in alone if each.trained]),
    ):
        (end, x), (entering, of_first) = found.items()
        np.testing.assert_array_equal(x, np.concatenate([each[end] for each in of_each], axis=1))
        np.testing.assert_array_equal(of_first, of_each[0][entering])
    # what is calibrated is what the bundle gives
    model = load(tmp_path / "b", buckets=(8,))
    loaded = evaluation_of(Path(one))
    split = loaded.dataset.val
    pixels = np.empty((len(split), 32, 32, 3), np.uint8)
    open_split(loaded.experiment.config, split).read(split.rows, pixels)
    said = model.forward(pixels, split.meta, split.meta_valid)
    for task, z in together.logits[WITH].items():
        np.testing.assert_allclose(np.sort(said[task], axis=0), np.sort(z, axis=0), atol=1e-3)


FAR_AWAY = """
import json, sys
import numpy as np
import linnaeus_jax
from linnaeus_jax.reading.metadata import Observation

given = np.load(sys.argv[2])
model = linnaeus_jax.load(sys.argv[1], buckets=(1, 4))
pixels = given["pixels"]
order = given["order"]
components = model.bundle.encoder.components
starts = [start for start, _ in model.bundle.encoder.bounds]

def observations(meta, valid):
    return [
        Observation(components={
            c.name: row[start:start + len(c.columns)]
            for c, start, known in zip(components, starts, mask) if known
        })
        for row, mask in zip(meta, valid)
    ]

found = {}
for name in ("full", "partial", "none"):
    encoded = model.bundle.encoder.encode(observations(given["meta"], given[name]))
    arrays = pixels, encoded.meta, encoded.valid
    at_once = model.forward(*arrays)
    one_by_one = [model.forward(*(a[i:i + 1] for a in arrays)) for i in range(len(pixels))]
    shuffled = model.forward(*(a[order] for a in arrays))
    for task, z in at_once.items():
        found[f"{name}/all/{task}"] = z
        found[f"{name}/one/{task}"] = np.concatenate([each[task] for each in one_by_one])
        found[f"{name}/order/{task}"] = shuffled[task][np.argsort(order)]
paths = [[taxon.label for taxon in each.path] for each in model.predict(list(pixels))]
np.savez(sys.argv[3], **found)
print(json.dumps({"paths": paths, "compilations": model.forward.compilations}))
"""


@pytest.mark.slow
def test_a_moved_bundle_answers_as_the_run_does(tmp_path, one_device, capsys):
    """In a fresh process, without configuration or data: the logits of the run's own evaluation program, which uses the
    moving average of the best checkpoint."""
    from linnaeus_jax.data.image_sources import open_split
    from linnaeus_jax.learning.meta_masking import component_mask
    from linnaeus_jax.run import trainer
    from linnaeus_jax.run.evaluate import evaluate, load, parse_phases

    run = tmp_path / "original" / "run"
    trainer.run(tiny_config(run.parent / "data", train__ema__enabled=True, train__ema__decay=0.5), run)
    capsys.readouterr()
    assert tool.main([str(run), str(tmp_path / "made")]) == 0
    assert re.search(r"moving average after \d+ updates, calibrated on 24 validation rows", capsys.readouterr().out)
    away = tmp_path / "far" / "away"
    away.parent.mkdir()
    (tmp_path / "made").rename(away)

    loaded = load(run, "best")
    components = loaded.experiment.program.evaluation.component_names
    phases = {"full": "val", "partial": "val_mask_TEMPORAL", "none": "val_mask_meta"}
    parsed = parse_phases(",".join(phases.values()), components)
    masks = {phase.name: component_mask(components, phase.masked) for phase in parsed}
    evaluation = evaluate(loaded, parsed, logits=True)
    split = loaded.dataset.val
    pixels = np.empty((len(split), 32, 32, 3), np.uint8)
    source = open_split(loaded.experiment.config, split)
    source.read(split.rows, pixels)
    valid: dict[str, Any] = {name: split.meta_valid & masks[phase] for name, phase in phases.items()}
    assert not split.meta_valid.all()  # some are unknown
    order = np.random.default_rng(0).permutation(len(split))
    np.savez(tmp_path / "given.npz", pixels=pixels, meta=split.meta, order=order, **valid)
    run.parent.rename(tmp_path / "gone")
    command = [sys.executable, "-c", FAR_AWAY, str(away), str(tmp_path / "given.npz"), str(tmp_path / "found.npz")]
    environment = {**os.environ, "PYTHONPATH": str(Path(tool.__file__).parents[2])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = load_npz(tmp_path / "found.npz")
    for name, phase in phases.items():
        for task, expected in evaluation.predictions[phase].logits.items():
            for how in ("all", "one", "order"):
                np.testing.assert_allclose(found[f"{name}/{how}/{task}"], expected, rtol=0, atol=1e-5)
    answered = json.loads(done.stdout.splitlines()[-1])
    assert answered["compilations"] == 2
    assert len(answered["paths"]) == len(split)
    bundle = read_bundle(away)
    assert (bundle.calibration.rows, bundle.facts["measured"]["of"]) == (24, 24)
    assert str(tmp_path) not in (away / "README.md").read_text() + (away / "bundle.json").read_text()
