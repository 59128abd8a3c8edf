"""The weights of a run, from its directory alone."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace
from typing import Any

import h5py
import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from linnaeus_jax.config.defaults import complete_open_nodes, get_config
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.saved import keep
from linnaeus_jax.config.typed import typed
from linnaeus_jax.data.preprocessing import KEYS as PREPROCESSING_KEYS
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.files import read_json, write_json
from linnaeus_jax.inference.bundle.bundle import bundle_of_run
from linnaeus_jax.reading.box_cuts import Cut
from linnaeus_jax.run.checkpoints import Checkpoints
from linnaeus_jax.run.saved_weights import choose_checkpoint, read_run, run_state_of
from linnaeus_jax.tools import export_weights
from linnaeus_jax.weights.importing import read_pretrained
from tests.run.saved_run import contents, save_run
from tests.tiny import tiny_config

HEADS = ConfigDict({"taxa_L10": {"type": "ConditionalClassifier"}})


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Directory of a run with conditional heads and a moving average, and its states by step."""
    root = tmp_path_factory.mktemp("saved")
    settings = {"train__ema__enabled": True, "model__depthwise_impl": "lax"}
    config = tiny_config(root / "data", model__classification__heads=HEADS, **settings)
    states = save_run(root / "run", config, {5: 0.7, 9: 0.4})
    shutil.rmtree(root / "data")  # nothing of it is needed
    return root / "run", states


def same(read, state):
    jax.tree.map(np.testing.assert_array_equal, read, jax.tree.map(np.asarray, state))


@pytest.mark.slow
def test_a_run_that_was_trained_with_the_fused_kernel(saved, monkeypatch):
    """It needs bfloat16 on a GPU; saved weights are used in float32, and anywhere."""
    read = Checkpoints.meta

    def with_fused_kernel(self: Checkpoints, step: int) -> Any:
        meta = read(self, step)
        meta["config"]["model"]["attn_impl"] = "cudnn"
        return meta

    monkeypatch.setattr(Checkpoints, "meta", with_fused_kernel)
    assert read_run(saved[0]).settings["attn_impl"] == "auto"


def test_pictures_are_prepared_as_when_the_checkpoint_was_made(saved, monkeypatch):
    """What a run was told later, with which it went on, is no matter of an earlier checkpoint."""
    read = Checkpoints.meta

    def of_then(self: Checkpoints, step: int) -> Any:
        meta = read(self, step)
        if step == 5:
            meta["config"]["data"] |= {"resize_mode": "center_crop", "interpolation": "bicubic", "crop_fraction": 0.875}
            meta["config"]["aug"]["mean"] = [0.1, 0.2, 0.3]
        return meta

    monkeypatch.setattr(Checkpoints, "meta", of_then)
    earlier, newest = (bundle_of_run(saved[0], step).preprocessing for step in (5, 9))
    assert (earlier.resizing, earlier.mean) == ("center_crop, bicubic, crop fraction 0.875", (0.1, 0.2, 0.3))
    assert newest == Preprocessing((32, 32))
    assert read_run(saved[0], 5).facts["image"]["crop_fraction"] == 0.875


def test_an_evaluation_prepares_pictures_as_when_the_checkpoint_was_made(caplog):
    now, then = complete_open_nodes(get_config()), complete_open_nodes(get_config())
    then.data.resize_mode, then.aug.std = "pad", (0.5, 0.5, 0.5)
    now.data.interpolation, now.data.num_workers = "bicubic", 7
    keep(now, then, PREPROCESSING_KEYS, "checkpoint 5")
    assert Preprocessing.from_config(typed(now)) == Preprocessing.from_config(typed(then))
    assert now.data.num_workers == 7
    told = [record.getMessage() for record in caplog.records]
    assert "data.resize_mode is now 'squash'; checkpoint 5 was trained with 'pad', which is used" in told
    assert len(told) == 3


def test_which_checkpoint_and_which_weights(saved):
    run, states = saved
    before = contents(run)
    best, newest = read_run(run), read_run(run, "newest", "last")
    assert (best.step, best.weights, newest.step, newest.weights) == (5, "ema", 9, "last")
    assert read_run(run, 9).step == 9
    same(best.params, states[5].ema)
    same(newest.params, states[9].params)
    assert best.model_state == {}
    assert contents(run) == before


def test_the_best_of_a_run_without_validation_is_the_newest(caplog):
    checkpoints: Any = SimpleNamespace(
        directory="runs/a/checkpoints", steps=lambda: [5, 9], finished_boundary=lambda step: {"ranking": {}}
    )
    assert choose_checkpoint(checkpoints, "best") == 9
    assert "no checkpoint in runs/a/checkpoints was ranked by a validation; the newest is used" in caplog.text


def test_the_model_is_that_of_the_run(saved):
    read = read_run(saved[0])
    assert read.model.components == (("TEMPORAL", 2), ("SPATIAL", 3))
    assert read.classes["taxa_L20"] == [0, 200, 201, 202, 203]
    assert [(spec.task, spec.type) for spec in read.model.head_specs] == [
        ("taxa_L10", "ConditionalClassifier"),
        ("taxa_L20", "Linear"),
        ("taxa_L30", "Linear"),
    ]
    assert read.model.head_specs[0].parents == (-1, 1, 1, 2, 2, 3, 3, 4, 4)
    assert read.parents is not None
    assert read.parents["taxa_L20"].tolist() == [-1, 1, 1, 2, 2]


def test_a_run_starts_from_a_run(saved):
    run, states = saved
    file = read_run(run, "newest", "last").state_file()
    assert file.path == run / "checkpoints" / "ckpt_step_9"
    assert file.notes == ("last parameters after 9 updates",)
    assert file.facts["classes"]["taxa_L30"] == [0, 30, 31]
    assert file.facts["head types"]["taxa_L10"] == "ConditionalClassifier"
    model = read_run(run).model
    settings = {"type": "mFormerV1", "pretrained": str(run)}
    done = read_pretrained(settings, model, file.facts["classes"], file)
    initial = jax.tree.map(np.zeros_like, read_run(run).params)
    same(done.merged(initial, {})[0], states[9].params)
    with pytest.raises(UserError, match="is a directory"):
        read_pretrained(settings, model, {})


def test_what_is_no_run(saved, tmp_path):
    run, _ = saved
    for which in ("7", "latest"):
        with pytest.raises(UserError, match=rf"no checkpoint '{which}' in .*choose newest, best or one of 5, 9"):
            read_run(run, which)
    with pytest.raises(UserError, match="give the directory of a run"):
        read_run(tmp_path)
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (copy / "checkpoints" / "ckpt_step_5" / "state" / "_METADATA").write_text("{")
    before = contents(copy)
    with pytest.raises(UserError, match=r"checkpoint 5 in .* cannot be read"):
        read_run(copy)
    assert contents(copy) == before
    shutil.rmtree(copy / "checkpoints" / "ckpt_step_5")
    shutil.rmtree(copy / "checkpoints" / "ckpt_step_9")
    with pytest.raises(UserError, match="holds no complete checkpoint"):
        read_run(copy)


def test_a_run_without_ranking(tmp_path):
    save_run(tmp_path / "run", tiny_config(tmp_path / "data"), {})
    with pytest.raises(UserError, match=r"model\.pretrained: .*holds no complete checkpoint.*export-weights RUN"):
        run_state_of({"pretrained": str(tmp_path / "run")})


def test_a_run_of_one_rank_is_bundled_and_named(tmp_path):
    """It has no parents, which is not the same as a run that left no tree."""
    run = tmp_path / "run"
    ranks = {"data__task_keys_h5": ("taxa_L20",), "schedule__mixup__group_levels": ("taxa_L20",)}
    save_run(run, tiny_config(tmp_path / "data", **ranks), {5: 0.7})
    bundle = bundle_of_run(run)
    assert bundle.taxonomy.tasks == ("taxa_L20",)
    assert bundle.taxonomy.tree.parent["taxa_L20"].tolist() == [-1] * 5
    file = run_state_of({"pretrained": str(run)})
    assert file is not None
    assert file.facts["classes"] == {"taxa_L20": [0, 200, 201, 202, 203]}
    digests = read_json(run / "digests.json") if (run / "digests.json").exists() else {}
    write_json(run / "digests.json", {name: one for name, one in digests.items() if "taxonomy_tree" not in name})
    (run / "assets" / "taxonomy_tree.json").unlink()
    with pytest.raises(UserError, match=r"holds no taxonomy_tree\.json"):
        bundle_of_run(run)


def test_how_boxes_were_cut_goes_from_data_to_bundle(saved, tmp_path):
    assert "boxes" not in bundle_of_run(saved[0]).facts
    config = tiny_config(tmp_path / "data")
    cut = Cut(margin=0.2, categories=("animal",)).to_json()
    with h5py.File(config.data.h5.labels_path, "r+") as file:
        file.require_group("metadata/image_processing").attrs["boxes"] = json.dumps(cut)
    save_run(tmp_path / "run", config, {5: 0.7})
    assert bundle_of_run(tmp_path / "run").facts["boxes"] == cut


def test_which_runs_a_config_names(saved, tmp_path):
    run, _ = saved
    file = run_state_of({"pretrained": str(run)})
    assert file is not None
    assert file.facts["step"] == 5
    for path in ("", str(tmp_path / "w.safetensors")):
        assert run_state_of({"pretrained": path}) is None


@pytest.mark.parametrize(
    "name",
    ["assets/taxonomy_tree.json", "checkpoints/ckpt_step_9/meta/metadata", "checkpoints/boundary"],
)
@pytest.mark.parametrize(
    "content", [b"", b"{ not JSON", bytes(range(256)), b"[1, 2]", b'{"hierarchy_map_raw": {"x": 3}}']
)
def test_a_damaged_file_of_a_run_is_one_message(saved, tmp_path, capsys, name, content):
    run = tmp_path / "run"
    shutil.copytree(saved[0], run)
    if name == "checkpoints/boundary":  # that of the newest checkpoint, which need not be there
        (run / "checkpoints" / "boundary_9.json").write_bytes(content)
    else:
        (run / name).write_bytes(content)
    status = export_weights.main([str(run), str(tmp_path / "out.safetensors"), "--checkpoint=newest"])
    said = capsys.readouterr().err
    if name == "checkpoints/boundary":
        assert status == 0
        return
    assert status == 2, said
    assert "Traceback" not in said
    assert not (tmp_path / "out.safetensors").exists()
