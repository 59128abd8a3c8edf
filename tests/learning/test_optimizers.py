from __future__ import annotations

import math

import jax
import numpy as np
import optax
import pytest

from linnaeus_jax.config import defaults, open_nodes
from linnaeus_jax.config.typed import typed
from linnaeus_jax.learning.buckets import global_norm
from linnaeus_jax.learning.optimizers import build_optimizer
from linnaeus_jax.learning.update import clip_norm, clip_units, ema_update
from tests.learning.test_filters import Info, load


@pytest.fixture(scope="module")
def golden(fixtures):
    with np.load(fixtures / "learning_optim.npz") as archive:
        return dict(archive)


def settings(**values):
    config = defaults.get_config().unlock()
    section = config.optimizer
    groups, optimizer = values.pop("groups", None), values.pop("name", section.name)
    section.update(values)
    if groups is not None:
        section.parameter_groups.enabled = True
        for name, given in groups.items():
            section.parameter_groups[name] = open_nodes.entry("optimizer.parameter_groups")
            section.parameter_groups[name].update(given)
    return typed(config).replaced({"optimizer.name": optimizer}).optimizer


def by_name(*patterns, match_type="contains"):
    return {"type": "name", "patterns": patterns, "match_type": match_type}


def trajectory(section, start, grads, lr, name="blocks.0.weight"):
    """Parameters after each step of one weight, with the learning rate applied by the step."""
    info = Info(name, ("w",), start.shape)
    optimizer = build_optimizer(section, [info])
    params = {"w": start}
    state = jax.jit(optimizer.transform.init)(params)

    @jax.jit
    def step(params, state, grad, lr):
        descent, state = optimizer.transform.update({"w": grad}, state, params)
        return optax.apply_updates(params, optimizer.apply_learning_rates(descent, {"default": lr})), state

    found = []
    for grad in grads:
        params, state = step(params, state, grad, np.float32(lr))
        found.append(np.asarray(params["w"]))
    return optimizer, np.stack(found)


def first_update(optimizer, params, grads, rates):
    """State before the first update, and what that adds to the parameters."""

    @jax.jit
    def update(params, grads):
        state = optimizer.transform.init(params)
        descent, _ = optimizer.transform.update(grads, state, params)
        return state, optimizer.apply_learning_rates(descent, rates)

    return update(params, grads)


@pytest.mark.parametrize("form", ["nesterov", "plain"])
@pytest.mark.parametrize("shape", ["tall", "wide", "square", "conv"])
def test_muon(golden, shape, form):
    order = (2, 3, 1, 0) if shape == "conv" else (1, 0)  # torch layout -> output last
    start = golden[f"muon/{shape}/p0"].transpose(order)
    grads = [g.transpose(order) for g in golden[f"muon/{shape}/grads"]]
    nesterov = form == "nesterov"
    muon = {"momentum": 0.95 if nesterov else 0.9, "nesterov": nesterov, "ns_steps": 5}
    section = settings(name="muon", weight_decay=0.05 if nesterov else 0.0, muon=muon)
    optimizer, found = trajectory(section, start, grads, 0.02 if nesterov else 0.1)
    assert optimizer.rows[0].optimizer == "muon"
    want = golden[f"muon/{shape}/{form}/f32"]
    np.testing.assert_allclose(found, np.stack([w.transpose(order) for w in want]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["a", "b"])
def test_newton_schulz_iterations(golden, name):
    given, want = golden[f"ns/{name}/in"].T, golden[f"ns/{name}/f32"].T
    section = settings(name="muon", weight_decay=0.0, muon={"momentum": 0.0, "nesterov": False, "ns_steps": 5})
    _, found = trajectory(section, 0 * given, [given], 1.0)
    scale = math.sqrt(max(1.0, given.shape[1] / given.shape[0]))
    np.testing.assert_allclose(-found[0] / scale, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["adamw", "sgd", "ademamix_const", "ademamix_warm"])
def test_elementwise_optimizers(golden, name):
    section = settings(name=name.split("_")[0], weight_decay=0.05)
    want = golden[f"vec/{name}/want"] if name.startswith("ademamix") else golden[f"vec/{name}"]
    if name.startswith("ademamix"):
        lr, b1, b2, b3, eps, decay, alpha, warmup = golden[f"vec/{name}/hyper"].tolist()
        given = {"betas": (b1, b2, b3), "eps": eps, "weight_decay": decay, "alpha": alpha}
        section = section.replaced(given | {"t_alpha_beta3": int(warmup) if warmup > 0 else None})
        assert lr == 1e-2
    _, found = trajectory(section, golden["vec/p0"], golden["vec/grads"], 1e-2)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "alias"),
    [
        ("lamb", lambda lr: optax.lamb(lr, 0.9, 0.999, 1e-8, weight_decay=0.05)),
        ("lion", lambda lr: optax.lion(lr, 0.9, 0.999, weight_decay=0.05)),
        ("adam", lambda lr: optax.chain(optax.add_decayed_weights(0.05), optax.adam(lr, 0.9, 0.999, 1e-8))),
    ],
)
def test_same_as_optax(golden, name, alias):
    tx = alias(1e-2)

    @jax.jit
    def step(params, state, grad):
        updates, state = tx.update(grad, state, params)
        return optax.apply_updates(params, updates), state

    params = golden["vec/p0"]
    state, want = jax.jit(tx.init)(params), []
    for grad in golden["vec/grads"]:
        params, state = step(params, state, grad)
        want.append(np.asarray(params))
    _, found = trajectory(settings(name=name), golden["vec/p0"], golden["vec/grads"], 1e-2)
    np.testing.assert_allclose(found, np.stack(want), rtol=1e-6, atol=1e-7)


def test_newton_schulz_of_stacked_layers_is_per_layer():
    rng = np.random.default_rng(0)
    stacked = rng.normal(size=(3, 5, 4)).astype(np.float32)
    infos = [Info(f"blocks.{i}.weight", ("w",), (5, 4)) for i in range(3)]
    section = settings(name="muon", weight_decay=0.0, layer_decay=0.5)
    optimizer = build_optimizer(section, infos, layer_index=lambda name: int(name.split(".")[1]))
    _, updates = first_update(optimizer, {"w": np.zeros_like(stacked)}, {"w": stacked}, {"default": 1.0})
    np.testing.assert_array_equal(optimizer.factor["w"].ravel(), [0.25, 0.5, 1.0])
    for i, grad in enumerate(stacked):
        _, alone = trajectory(settings(name="muon", weight_decay=0.0), 0 * grad, [grad], 0.5 ** (2 - i))
        np.testing.assert_allclose(updates["w"][i], alone[0], atol=1e-6)
    groups = {"first": {"filter": by_name("blocks.0")}}
    with pytest.raises(ValueError, match=r"stacked parameter \(w\).*groups 'first' and 'default'"):
        build_optimizer(settings(groups=groups), infos)
    with pytest.raises(ValueError, match="lamb"):
        build_optimizer(settings(name="lamb"), infos)


def test_default_decay_rule(fixtures):
    golden, parameters = load(fixtures)
    frozen = [p["name"] for p in golden["params"] if not p["trainable"]]
    section = settings(groups={"fixed": {"filter": by_name(*frozen), "frozen": True}})
    rows = build_optimizer(section, parameters).rows
    assert [r.name for r in rows if r.weight_decay == 0.05] == golden["decay"]
    assert [r.name for r in rows if r.weight_decay == 0 and r.optimizer != "frozen"] == golden["no_decay"]
    assert [r.name for r in rows if r.optimizer == "frozen"] == frozen
    (row,) = build_optimizer(
        section.replaced({"parameter_groups.enabled": False}), [Info("a.bias", ("b",), (3, 4))]
    ).rows
    assert row.weight_decay == 0, "of any shape"


def test_a_group_of_a_person_that_is_called_stored_trains_where_everything_does():
    section = settings(groups={"stored": {"filter": by_name("a"), "lr_multiplier": 0.5}})
    rows = build_optimizer(section, [Info("a", ("a",), (3, 4)), Info("b", ("b",), (3, 4))]).rows
    assert [(row.group, row.optimizer, row.lr_multiplier) for row in rows] == [
        ("stored", "adamw", 0.5),
        ("default", "adamw", 1.0),
    ]


def test_groups_partition_first_match_frozen_and_rates(fixtures):
    _, parameters = load(fixtures)
    section = settings(
        groups={  # not in alphabetical order: the order of the configuration decides
            "stem": {"filter": by_name("stem", match_type="startswith"), "frozen": True},
            "biases": {"filter": by_name(".bias", match_type="endswith"), "lr_multiplier": 2.0},
            "aux": {"filter": by_name("head"), "optimizer": "sgd", "weight_decay": 0.2},
        }
    )
    section = section.replaced({"parameter_groups.default.weight_decay": 0.01})
    optimizer = build_optimizer(section, parameters)
    count = {g: sum(row.group == g for row in optimizer.rows) for g in ("stem", "biases", "aux", "default")}
    assert count == {"stem": 4, "biases": 11, "aux": 4, "default": len(parameters) - 19}
    assert list(optimizer.lr_multipliers.items()) == [("biases", 2.0), ("aux", 1.0), ("default", 1.0)]
    assert "stem.0.bias matches stem, biases; stem takes it" in optimizer.overlaps
    assert len(optimizer.overlaps) == 5  # two of the stem, three of the heads
    row = {r.name: r for r in optimizer.rows}
    assert (row["head.taxa_L10.weight"].optimizer, row["head.taxa_L10.weight"].weight_decay) == ("sgd", 0.2)
    assert (row["headroom"].group, row["headroom"].weight_decay) == ("aux", 0.0)
    assert row["cls_token_1"].weight_decay == 0.01
    assert row["stages.0.bias"].lr_multiplier == 2.0

    params: dict = {}
    for p in parameters:
        node = params
        for part in p.path[:-1]:
            node = node.setdefault(part, {})
        node[p.path[-1]] = np.ones(p.shape, np.float32)
    state, updates = first_update(optimizer, params, params, {"biases": 0.1, "aux": 0.2, "default": 0.0})
    assert not np.any(updates["stem"]["0"]["weight"])
    assert not np.any(updates["cls_token_1"])
    np.testing.assert_allclose(updates["stages"]["0"]["bias"], -0.1, rtol=1e-5)  # Adam's first step is the sign
    np.testing.assert_allclose(updates["head"]["taxa_L10"]["weight"], -0.2 * 1.9 * 1.2, rtol=1e-5)
    with pytest.raises(ValueError, match=r"\['aux', 'default'\]"):
        optimizer.apply_learning_rates(updates, {"biases": 0.1})
    adam_state = state.inner_states["adamw"].inner_state[0].mu
    assert isinstance(adam_state["stem"]["0"]["weight"], optax.MaskedNode)  # no memory for frozen parameters


def test_muon_takes_hidden_matrices_only():
    infos = [
        Info("blocks.0.fc.weight", ("a",), (8, 4)),
        Info("downsample.conv.weight", ("b",), (2, 2, 8, 16)),
        Info("blocks.0.dwconv.weight", ("c",), (7, 7, 1, 8)),
        Info("patch_embed.weight", ("d",), (4, 4, 3, 8)),
        Info("head.x.fc.weight", ("e",), (8, 3)),
        Info("cls_token", ("f",), (1, 1, 8)),
        Info("relative_position_bias_table", ("g",), (9, 2)),
        Info("norm.weight", ("h",), (8,)),
    ]
    kinds = [row.optimizer for row in build_optimizer(settings(name="Muon"), infos).rows]
    assert kinds == ["muon", "muon", *["adamw"] * 6]
    section = settings(groups={"m": {"filter": {"type": "dimension", "dimensions": [2, 4]}, "optimizer": "muon"}})
    kinds = [row.optimizer for row in build_optimizer(section, infos).rows]
    assert kinds == ["muon", "muon", "adamw", "muon", "muon", "adamw", "muon", "adamw"]


def test_layer_decay_factors():
    infos = [Info("stem.weight", ("s", "w")), Info("block.weight", ("b", "w")), Info("head.weight", ("h", "w"))]
    depth = {"stem.weight": 0, "block.weight": 2, "head.weight": 3}
    optimizer = build_optimizer(settings(layer_decay=0.5), infos, layer_index=depth.__getitem__)
    assert optimizer.factor == {"s": {"w": 0.125}, "b": {"w": 0.5}, "h": {"w": 1.0}}
    assert [row.lr_multiplier for row in optimizer.rows] == [0.125, 0.5, 1.0]
    ones = {k: {"w": np.ones((2, 3), np.float32)} for k in "sbh"}
    updates = optimizer.apply_learning_rates(ones, {"default": 0.1})
    np.testing.assert_allclose([updates[k]["w"][0, 0] for k in "sbh"], [-0.0125, -0.05, -0.1], rtol=1e-6)


def test_all_errors_at_once(fixtures):
    _, parameters = load(fixtures)
    section = settings(
        name="adamx",
        betas=(0.9, 0.999),
        layer_decay=0.5,
        groups={
            "typo": {"filter": by_name("haed")},
            "all": {"filter": {"type": "or", "filters": [by_name("")]}, "optimizer": "ademamix"},
            "late": {"filter": by_name("head")},
            "bad": {"filter": {"type": "x"}},
        },
    )
    with pytest.raises(ValueError) as caught:
        build_optimizer(section, parameters)
    text = str(caught.value)
    for part in (
        "optimizer.name = 'adamx' is unknown",
        f"parameter_groups.typo.filter matches none of the {len(parameters)} parameters",
        "parameter_groups.late is empty: earlier groups take all of its 7 parameters",
        "parameter_groups.bad.filter.type = 'x' is unknown",
        "optimizer.betas = (0.9, 0.999): need 3 numbers",
        "optimizer.layer_decay = 0.5: this model does not number its layers",
    ):
        assert part in text


def test_everything_may_be_frozen():
    """Such a run changes nothing, and its event log says so."""
    params, parameters = {"w": np.ones((3, 2), np.float32)}, [Info("head.weight", ("w",), (3, 2))]
    optimizer = build_optimizer(settings(groups={"all": {"filter": by_name(""), "frozen": True}}), parameters)
    assert {row.optimizer for row in optimizer.rows} == {"frozen"}
    _, updates = first_update(optimizer, params, params, {"all": 1.0, "default": 1.0})
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(updates))


def test_clipping(golden):
    @jax.jit
    def clipped_by_norm(grads, limit):
        norm = global_norm(grads)
        return norm, *clip_norm(grads, norm, limit)

    for j in range(2):
        grads = {str(i): golden[f"clip/{j}/in_{i}"] for i in range(3)}
        limit = float(golden[f"clip/{j}/max"])
        norm, clipped, after = clipped_by_norm(grads, limit)
        np.testing.assert_allclose(norm, golden[f"clip/{j}/norm"], rtol=1e-6)
        np.testing.assert_allclose(after, min(float(norm), limit), rtol=1e-5)
        for i in range(3):
            np.testing.assert_allclose(clipped[str(i)], golden[f"clip/{j}/out_{i}"], rtol=1e-5, atol=1e-7)
    assert clip_norm(grads, norm, None) == (grads, norm)
    params = {"w": np.ones((4, 2), np.float32), "b": np.zeros(2, np.float32)}
    grads = {"w": np.array([[3.0, 0.01]] * 4, np.float32), "b": np.ones(2, np.float32)}
    clipped = jax.jit(clip_units)(grads, params, 0.1)
    np.testing.assert_allclose(np.linalg.norm(clipped["w"], axis=0), [0.2, 0.02], rtol=1e-5)
    assert clip_units(grads, params, None) is grads


@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 4, 3), (3, 3, 4, 5)])
def test_adaptive_clipping_of_stacked_layers_is_per_layer(shape):
    rng = np.random.default_rng(0)
    grads, weights = ((scale * rng.normal(size=(3, *shape))).astype(np.float32) for scale in (5.0, 0.5))
    weights *= np.asarray([1.0, 10.0, 100.0], np.float32).reshape(-1, *[1] * len(shape))
    infos = [Info(f"blocks.{i}.weight", ("w",), shape) for i in range(3)]
    stacked = build_optimizer(settings(name="sgd"), infos)
    apart = build_optimizer(settings(name="sgd"), [Info(i.name, (i.name,), shape) for i in infos])
    one_by_one = [dict(zip([row.name for row in apart.rows], x, strict=True)) for x in (grads, weights)]

    @jax.jit
    def clipped(grads, weights, one_by_one):
        grads, weights = {"w": grads}, {"w": weights}
        expected = clip_units(one_by_one[0], one_by_one[1], 0.1, apart.ndim)
        layers, whole = clip_units(grads, weights, 0.1, stacked.ndim), clip_units(grads, weights, 0.1)
        return layers["w"], list(expected.values()), whole["w"]

    found, expected, together = clipped(grads, weights, one_by_one)
    np.testing.assert_array_equal(found, expected)
    assert not np.allclose(found, together)


def test_average_warms_up():
    ema, params, update = {"w": np.zeros(3, np.float32)}, {"w": np.ones(3, np.float32)}, jax.jit(ema_update)
    np.testing.assert_allclose(update(ema, params, 0.999, 0)["w"], 0.9, rtol=1e-6)
    np.testing.assert_allclose(update(ema, params, 0.999, 10**6)["w"], 0.001, rtol=1e-4)
