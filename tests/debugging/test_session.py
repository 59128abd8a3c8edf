"""The debugging system inside a real run: detector, bundle and replay, event log, flags, profiler."""

from __future__ import annotations

import json
import re
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.config.plugins import import_plugins
from linnaeus_jax.config.saved import config_from_json
from linnaeus_jax.debugging import crash_bundle
from linnaeus_jax.debugging.flags import FLAGS, leaf
from linnaeus_jax.files import RunDirectory
from linnaeus_jax.registry import MODELS
from linnaeus_jax.run.experiment import Experiment, preview_experiment
from linnaeus_jax.run.trainer import UserError, run
from linnaeus_jax.tools.replay import replay
from tests.extending.common import EXAMPLES
from tests.step import toy
from tests.tiny import tiny_config

#: each builds several runs with almost everything on
pytestmark = pytest.mark.slow

#: one run with every flag, GradNorm, smoothing and class weights on
EVERYTHING = {
    "model__type": "toy",
    **{f"debug__{flag.replace('.', '__')}": True for flag in FLAGS},
    "train__epochs": 1,
    "loss__grad_weighting__task__type": "gradnorm",
    "loss__grad_weighting__task__update_interval": 2,
    "loss__grad_weighting__class_weights__method": ("capping",),
    "loss__taxonomy_smoothing__enabled": (True,),
    "schedule__null_masking__enabled": True,
    "experiment__wandb__enabled": True,
    "experiment__wandb__mode": "offline",
    "debug__profiler__enabled": True,
    "debug__profiler__schedule": (0, 1, 2, 1),
}


@pytest.fixture(autouse=True, scope="module")
def toy_model():
    with pytest.MonkeyPatch.context() as patch:
        toy.register(patch)
        yield


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    directory = tmp_path_factory.mktemp("everything")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("WANDB_MODE", raising=False)
        run(tiny_config(directory / "data", **EVERYTHING), directory / "run")
    return directory / "run"


def debug_text(root: Path) -> str:
    return "".join(path.read_text() for path in (root / "logs").glob("*debug_log_rank0.txt"))


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flag_says_something(everything, flag):
    lines = [line for line in debug_text(everything).splitlines() if f"[DEBUG_{leaf(flag).upper()}" in line]
    assert lines
    assert any(len(line.split("]", 1)[1].strip()) > 10 for line in lines)


def test_flags_of_a_boundary(everything):
    """What is due and what is not, with values; the metrics without repetition."""
    lines = debug_text(everything).splitlines()
    of = {name: [line for line in lines if f"[DEBUG_{name}]" in line] for name in ("SCHEDULING", "DUMP_METRICS")}
    assert any("VALIDATION_NORMAL" in line and " DUE " in line for line in of["SCHEDULING"])
    assert any("VALIDATION_EXHAUSTIVE" in line and " no " in line for line in of["SCHEDULING"])
    assert any("learning rate of " in line for line in of["SCHEDULING"])
    assert any("null_mask_prob" in line for line in of["SCHEDULING"])
    assert 10 < len(of["DUMP_METRICS"]) < 600


def test_class_weights_of_a_run(everything):
    """The loss that is shown as weighted is the one that the update trains."""
    found = re.findall(r"the update trains ([\d.]+);.* weighted ([\d.]+)", debug_text(everything))
    assert found
    for trained, weighted in found:
        assert float(weighted) == pytest.approx(float(trained), abs=2e-4)


def test_event_log_of_a_run(everything):
    (path,) = (everything / "logs" / "debug").glob("debug_log_*.jsonl")
    events = [json.loads(line) for line in path.read_text().splitlines()]
    kinds = [event["event_type"] for event in events]
    for kind in ("fit_start", "data_sanity_check", "epoch_start", "training_step", "gradient_stats"):
        assert kind in kinds, kind
    assert list((everything / "logs" / "debug").glob("debug_summary_*.json"))


def test_profiler_left_a_trace(everything):
    assert list((everything / "assets" / "profiler" / "plugins" / "profile").glob("cycle_0001/*.xplane.pb"))


def test_a_resumed_run_says_that_all_of_its_checkpoint_fits(tmp_path):
    config = tiny_config(
        tmp_path / "data", model__type="toy", train__epochs=1, debug__checkpoint=True, debug__jsonl__enabled=False
    )
    for _ in range(2):
        run(config, tmp_path / "run")
    told = re.search(r"(\d+) of (\d+) arrays fit, (.*)", debug_text(tmp_path / "run"))
    assert told is not None
    assert told[1] == told[2]
    assert told[3] == "0 missing, 0 unexpected, 0 of another shape"


def test_all_off_writes_no_debug_line(tmp_path):
    config = tiny_config(tmp_path / "data", model__type="toy", train__epochs=1, debug__jsonl__enabled=False)
    run(config, tmp_path / "run")
    assert "[DEBUG_" not in debug_text(tmp_path / "run")
    assert not (tmp_path / "run" / "logs" / "debug").exists()
    assert not (tmp_path / "run" / "assets" / "profiler").exists()


@pytest.fixture
def poison(monkeypatch):
    """Starts a run whose weight `aggregate.kernel` holds one NaN."""

    def poisoned(experiment):
        state = original(experiment)
        params = dict(state.params)
        kernel = params["aggregate"]["kernel"]
        params["aggregate"] = {**params["aggregate"], "kernel": kernel.at[0, 0].set(jnp.nan)}
        return state.replace(params=jax.device_put(params, experiment.placement.replicated))

    original = Experiment.initial_state
    monkeypatch.setattr(Experiment, "initial_state", poisoned)


def test_detector_names_the_frame_and_the_bundle_repeats_it(tmp_path, poison, capsys):
    """Weights of mFormerV1 are poisoned in test_frames.py, and trained until they overflow in docs/overflow.md."""
    config = tiny_config(
        tmp_path / "data",
        model__type="toy",
        train__epochs=1,
        debug__underflow_overflow__enabled=True,
        debug__jsonl__enabled=False,
    )
    with pytest.raises(UserError, match="inf/nan detected") as caught:
        run(config, tmp_path / "run")
    assert str(caught.value).endswith("First frame that is not finite: aggregate Dense, in update 0")
    shown = capsys.readouterr()
    assert "aborting as there is no point" not in shown.out + shown.err  # whoever called `run` shows it, once
    text = debug_text(tmp_path / "run")
    assert text.count("aborting as there is no point") == 1
    assert "Detected inf/nan during batch_number=0" in text
    assert "aggregate Dense" in text
    (bundle,) = (tmp_path / "run" / "crash").iterdir()
    assert replay(bundle) == 1
    assert "first frame that is not finite: aggregate Dense" in capsys.readouterr().out
    with np.load(bundle / "batch_0.npz") as batch:
        assert batch["image"].dtype == np.uint8
    assert replay(bundle, debug_nans=True) == 1
    told = capsys.readouterr().out
    assert "update 0: `" in told
    assert "Its inputs are bad already: ['state'].params['aggregate']['kernel'] before the computation" in told


class _Steep(nn.Module):
    """GELU plus nothing, in a form whose derivative is NaN where x <= 0."""

    @nn.compact
    def __call__(self, x):
        return jax.nn.gelu(x, approximate=False) + 0 * jnp.sqrt(jnp.maximum(x, 0))


class _SteepToy(toy.Toy):
    """Two such modules between the layers of the toy."""

    def setup(self):
        super().setup()
        self.first, self.second = _Steep(), _Steep()

    def encode_tokens(self, features, meta=None, *, meta_valid_BK=None, train=False):
        x = self.first(self.stem(jnp.concatenate([features, meta], axis=1)))
        return self.second(self.aggregate(x))


def test_what_breaks_in_the_backward_pass_is_named(tmp_path, monkeypatch, one_device, capsys):
    """The forward pass is finite; the first bad frame of the backward pass is the last module that has the fault."""
    monkeypatch.setitem(MODELS.entries, "toy", _SteepToy)
    config = tiny_config(
        tmp_path / "data",
        model__type="toy",
        train__epochs=1,
        debug__underflow_overflow__enabled=True,
        debug__underflow_overflow__gradients=True,
    )
    with pytest.raises(UserError, match="inf/nan detected"):
        run(config, tmp_path / "run")
    text = debug_text(tmp_path / "run")
    assert "grad input[0] has nans" in text
    assert "output has nans\n" not in text.split("grad input[0] has nans")[0]
    assert "forward and gradient frames:" in text
    (bundle,) = (tmp_path / "run" / "crash").iterdir()
    assert replay(bundle) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("first frame")]
    name, kind = line.split()[-2:]
    assert (name, kind) == ("second", "_Steep")
    assert f" {name} _Steep" in text


class _Infinite(nn.Module):
    """Infinite from its third pass in training on."""

    @nn.compact
    def __call__(self, x):
        passes = self.variable("passes", "done", jnp.zeros, ())
        out = x + jnp.where(passes.value > 1.5, jnp.inf, 0.0)
        if self.is_mutable_collection("passes") and not self.is_initializing():
            passes.value += 1
        return out


class _HiddenToy(toy.Toy):
    """With a module whose infinity the loss does not depend on."""

    def setup(self):
        super().setup()
        self.hidden = _Infinite()

    def encode_tokens(self, features, meta=None, *, meta_valid_BK=None, train=False):
        features = jnp.where(jnp.isfinite(self.hidden(features)), features, 1.0 * features)
        return super().encode_tokens(features, meta, meta_valid_BK=meta_valid_BK, train=train)


@pytest.fixture
def hidden_infinity(tmp_path, monkeypatch):
    """Starts a run whose layer `hidden` is infinite from update 2 on, which the loss does not depend on."""
    monkeypatch.setitem(MODELS.entries, "toy", _HiddenToy)

    def start(name, **detector):
        settings = {f"debug__underflow_overflow__{key}": value for key, value in detector.items()}
        config = tiny_config(
            tmp_path / "data", model__type="toy", train__epochs=1, debug__jsonl__enabled=False, **settings
        )
        return run(config, tmp_path / name)

    return start


def test_an_infinity_that_the_loss_never_sees_is_found_before_its_update(tmp_path, hidden_infinity):
    with pytest.raises(UserError, match="inf/nan detected") as caught:
        hidden_infinity("detected", enabled=True)
    assert str(caught.value).endswith("First frame that is not finite: hidden _Infinite, in update 2")
    bundle = tmp_path / "detected" / "crash" / "update_2"
    saved, step = crash_bundle.read_config(bundle)
    experiment = preview_experiment(config_from_json(saved), RunDirectory(bundle))
    state = crash_bundle.read_state(bundle, experiment.abstract_state)
    assert (step, int(state.step), int(state.skipped)) == (2, 2, 0)
    assert float(state.model_state["passes"]["hidden"]["done"]) == 2


def test_a_trace_leaves_the_run_as_it_is(tmp_path, hidden_infinity):
    plain, traced = hidden_infinity("plain"), hidden_infinity("traced", enabled=True, trace_batch_nums=(1, 3))
    assert not (tmp_path / "traced" / "crash").exists()
    text = debug_text(tmp_path / "traced")
    assert [text.count(f"*** Starting batch number={number} ***") for number in range(5)] == [0, 1, 0, 1, 0]
    assert text.count("     inf      inf output\n") == 1
    kept = [key for key in plain if not key.endswith(("_sec", "_per_sec"))]
    assert {key: plain[key] for key in kept} == {key: traced[key] for key in kept}


@pytest.mark.parametrize("trace", [(), (1,)])
def test_the_run_stops_after_the_update_that_is_named(hidden_infinity, trace):
    with pytest.raises(UserError, match="aborting after 2 batches"):
        hidden_infinity("stopped", enabled=True, trace_batch_nums=trace, abort_after_batch_num=1)


def test_crash_bundle_without_the_detector(tmp_path, poison):
    config = tiny_config(
        tmp_path / "data",
        model__type="toy",
        train__epochs=1,
        debug__crash_bundle=True,
        train__nonfinite_limit=2,
        debug__jsonl__enabled=False,
    )
    with pytest.raises(UserError, match="in a row were not finite"):
        run(config, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run" / "crash").iterdir()] == ["update_0"]


@pytest.mark.parametrize("zero_aux_info", [False, True])
def test_traced_gradients_with_gradnorm_and_accumulation(tmp_path, one_device, zero_aux_info):
    """A traced update prints every frame once: of all micro-batches, and of the losses that GradNorm takes apart."""
    config = tiny_config(tmp_path / "data", env__plugins=(str(EXAMPLES / "model_example.py"),))
    import_plugins(config)
    config = tiny_config(
        tmp_path / "data",
        model__type="SmallNet",
        model__variant="narrow",
        train__epochs=1,
        train__accumulation_steps=2,
        data__batch_size=8,
        debug__jsonl__enabled=False,
        debug__underflow_overflow__enabled=True,
        debug__underflow_overflow__gradients=True,
        debug__underflow_overflow__trace_batch_nums=(1,),
        loss__grad_weighting__task__type="gradnorm",
        loss__grad_weighting__task__update_interval=2,
        loss__grad_weighting__task__zero_aux_info=zero_aux_info,
    )
    run(config, tmp_path / "run")
    text = debug_text(tmp_path / "run")
    assert text.count("*** Starting batch number=1 ***") == 1
    assert text.count(" blocks.0 Conv2d") == 2  # forward and backward
    backward = text.split(" blocks.0 Conv2d")[2]
    assert " grad weight\n" in backward
    assert "nan" not in backward
