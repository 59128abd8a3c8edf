"""What is told in one line where a run is built, and what is a fault of the program."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.typed import typed
from linnaeus_jax.data.image_sources import open_images
from linnaeus_jax.data.images import ImageFiles
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.data.samplers import Sampler, SamplerSettings
from linnaeus_jax.files import RunDirectory
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.registry import IMAGE_SOURCES, SAMPLERS
from linnaeus_jax.run import experiment
from linnaeus_jax.run.inputs import build_inputs
from tests.step import toy
from tests.tiny import tiny_config

ROOM = "linnaeus_jax.run.experiment"


def failing(error: BaseException):
    def fail(*args, **kwargs):
        raise error

    return fail


@pytest.fixture
def build(tmp_path, monkeypatch):
    toy.register(monkeypatch)
    config = tiny_config(tmp_path / "data", model__type="toy")
    return lambda: experiment.build_experiment(config, RunDirectory(tmp_path / "run"))


@pytest.mark.parametrize(
    "place", ["build_inputs", "resolve_all_schedule_params", "DebugSession", "build_program", "loaded_names"]
)
@pytest.mark.parametrize("error", [KeyError("taxa_L10"), ValueError("a shape"), RuntimeError("a state")])
def test_a_fault_of_the_program_keeps_its_traceback(build, tmp_path, monkeypatch, place, error):
    monkeypatch.setattr(f"{ROOM}.{place}", failing(error))
    with pytest.raises(type(error)) as caught:
        build()
    assert caught.value is error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "place", ["data.labels.text_dataset", "data.dataset.read_taxon_names", "data.h5_images.ContiguousImages"]
)
def test_a_fault_in_a_reader_is_none_of_the_file(build, monkeypatch, place):
    monkeypatch.setattr(f"linnaeus_jax.{place}", failing(KeyError("rows")))
    with pytest.raises(KeyError, match="rows"):
        build()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (InputError("x.h5: no rows"), "^x.h5: no rows$"),
        (FileNotFoundError(2, "No such file or directory", "x.h5"), "^x.h5: No such file or directory; restore it"),
        (MemoryError(), "^out of memory: lower data.batch_size"),
        (RuntimeError("RESOURCE_EXHAUSTED: of the device"), r"^out of memory \(RESOURCE_EXHAUSTED: of the device\)"),
    ],
)
def test_mistakes_and_the_world_are_told_in_one_line(build, tmp_path, monkeypatch, error, message):
    monkeypatch.setattr(f"{ROOM}.build_program", failing(error))
    with pytest.raises(UserError, match=message):
        build()
    assert not (tmp_path / "run").exists()


def test_what_a_plugin_raises_is_told_under_its_name(tmp_path, monkeypatch):
    monkeypatch.setitem(IMAGE_SOURCES.entries, "tar", failing(KeyError("no index")))
    with pytest.raises(InputError, match=r"^data\.image_sources\.tar: 'no index'$"):
        open_images(ImageFiles(tmp_path, Preprocessing((32, 32))), "tar")

    class Choosy(Sampler):
        def __init__(self) -> None:
            raise TypeError("not today")

    monkeypatch.setitem(SAMPLERS.entries, "choosy", Choosy)
    with pytest.raises(InputError, match=r"^data\.sampler\.choosy: not today$"):
        SamplerSettings(type="choosy", grouped_mode="strict-group", leftovers="keep", batch_size=4)
    assert not SAMPLERS.from_plugin("grouped")


@pytest.mark.parametrize("name", ["labels.h5", "images.h5"])
def test_damage_is_told_whatever_hdf5_raises(tmp_path, name):
    """Of changed bytes of its headers, HDF5 raises OSError, KeyError, RuntimeError, ValueError and TypeError."""
    config = tiny_config(tmp_path)
    path = tmp_path / name
    good = path.read_bytes()
    told = 0
    for seed in range(40):
        draw = np.random.default_rng(seed)
        damaged = np.frombuffer(good, np.uint8).copy()
        places = draw.integers(0, min(len(good), 12_000), draw.choice((1, 4, 30)))
        damaged[places] = draw.integers(0, 256, len(places))
        path.write_bytes(damaged.tobytes())
        try:
            build_inputs(typed(config), devices=1, output_dir=None).open_for_training()
        except (InputError, OSError):
            told += 1
    assert told > 5


def test_a_name_that_is_no_text_is_damage(tmp_path):
    config = tiny_config(tmp_path)
    with h5py.File(tmp_path / "labels.h5", "a") as file:
        file[b"caf\xe9"] = [1]
    with pytest.raises(InputError, match=r"labels\.h5: .*caf.* cannot be read, the file is damaged"):
        build_inputs(typed(config), devices=1, output_dir=None)
