"""The tool that writes the weights of a run."""

from __future__ import annotations

import numpy as np
import pytest

from linnaeus_jax.tools import export_weights
from linnaeus_jax.weights.files import read_state
from tests.run.saved_run import contents, save_run
from tests.tiny import tiny_config
from tests.weights.test_hub_vit import Published


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("export")
    return root / "run", save_run(root / "run", tiny_config(root / "data"), {3: 0.2, 8: 0.1})


def test_export(saved, tmp_path, capsys):
    run, states = saved
    before, out = contents(run), tmp_path / "new" / "w.safetensors"
    assert export_weights.main([str(run), str(out)]) == 0
    assert "last parameters after 3 updates" in capsys.readouterr().out
    file = read_state(out)
    kernel = np.asarray(states[3].params["head"]["taxa_L10"]["fc"]["kernel"])
    np.testing.assert_array_equal(file.arrays["head.taxa_L10.fc.weight"], kernel.T)
    assert (file.facts["step"], file.facts["weights"], file.facts["variant"]) == (3, "last", "tiny")
    assert export_weights.main([str(run), str(out), "--checkpoint=newest", "--weights=last"]) == 0
    assert read_state(out).facts["step"] == 8
    assert contents(run) == before


def test_errors_write_nothing(saved, tmp_path_factory, tmp_path, capsys):
    run, _ = saved
    published = Published("hf_dinov2", tmp_path_factory.mktemp("published")).path
    out = tmp_path / "w.safetensors"
    for arguments, words in (
        ([run, tmp_path / "w.pth"], "must end in .safetensors"),
        ([tmp_path, out], "give the directory of a run"),
        ([run, out, "--checkpoint", "7"], "no checkpoint '7'"),
        ([run, out, "--weights", "ema"], "kept no moving average"),
        ([run, out, "--like", tmp_path / "none.safetensors"], "does not exist"),
        ([run, out, "--like", published], "is no file of a source of a mFormerV1"),
    ):
        assert export_weights.main([str(argument) for argument in arguments]) == 2
        assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
