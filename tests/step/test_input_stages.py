"""Pictures of an update after every stage are those that the update trains on."""

from __future__ import annotations

import numpy as np

from linnaeus_jax.files import RunDirectory
from linnaeus_jax.run.experiment import preview_experiment
from linnaeus_jax.step.input_stages import stage_images
from linnaeus_jax.tools.show_augmentations import render
from tests.tiny import tiny_config


def test_stages_of_an_update(tmp_path):
    config = tiny_config(
        tmp_path / "data",
        aug__color_jitter=0.4,
        aug__random_erase__prob=1.0,
        schedule__mixup__prob__enabled=True,
        schedule__mixup__enabled=True,
        schedule__mixup__prob__start_prob=1.0,
        schedule__mixup__prob__end_prob=1.0,
        schedule__meta_masking__enabled=True,
        schedule__meta_masking__start_prob=1.0,
    )
    experiment = preview_experiment(config, RunDirectory(tmp_path / "run"))
    with experiment.inputs.train_loader(0) as loader:
        _, batch = next(loader)
    batch["meta_valid"][0, 0] = False  # nothing is known, so that nothing can be masked
    stages, notes = stage_images(experiment.program.objective, batch, 0, 6)
    assert list(stages) == ["input", "flip", "colour jitter", "random erasing", "mixing, masking"]
    for image in stages.values():
        assert image.shape == (6, 32, 32, 3)
        assert image.min() >= -1e-5
        assert image.max() <= 1 + 1e-5
    np.testing.assert_allclose(stages["input"], batch["image"][0, :6] / np.float32(255), atol=1e-6)
    changes = [np.abs(a - b).max() for a, b in zip(list(stages.values())[:-1], list(stages.values())[1:], strict=True)]
    assert min(changes) > 0.01
    (texts,) = notes.values()
    assert any("λ" in text for text in texts)
    assert any("metadata" in text for text in texts)
    assert "metadata" not in texts[0]
    path = tmp_path / "stages.png"
    render(path, stages, [str(row) for row in batch["row"][0, :6]], notes)
    assert path.stat().st_size > 10_000
    assert not (tmp_path / "run").exists()
