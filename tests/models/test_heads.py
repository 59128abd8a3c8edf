"""Classification heads against golden numbers, and what refinement must and must not do."""

from __future__ import annotations

import functools
import json
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from linnaeus_jax.models.heads import ClassificationHeads, HeadSpec, HierarchicalHead, Refinement, head_specs
from linnaeus_jax.models.hierarchy import ParentLinks
from linnaeus_jax.registry import HEADS
from tests.npz import load_npz

FEATURES, ROWS = 6, 4
#: four ranks with a null class each, an orphan and a parent without children
CLASSES = {"taxa_L10": 9, "taxa_L20": 6, "taxa_L30": 4, "taxa_L40": 3}
PARENTS = {
    "taxa_L10": (-1, 1, 1, 2, 3, 3, 3, 5, -1),
    "taxa_L20": (-1, 1, 1, 3, 3, 2),
    "taxa_L30": (-1, 1, 1, 2),
}
HIERARCHICAL = ("ConditionalClassifier", "HierarchicalSoftmax", "PathSoftmax")
#: variant of the golden numbers -> head
GOLDEN = {"linear": {"type": "Linear"}, "hsm": {"type": "HierarchicalSoftmax"}} | {
    f"cc_{routing}_{name}": {"type": "ConditionalClassifier", "routing_strategy": routing, "temperature": temperature}
    for routing in ("soft", "hard")
    for name, temperature in (("T1", 1.0), ("T0.5", 0.5))
}


def golden_specs(cfg: dict[str, Any], head: dict[str, Any]) -> tuple[HeadSpec, ...]:
    """Every task with one head; the golden numbers give classes without a parent a prior of 1e-10."""
    tasks = cfg["tasks"]
    parents = {task: np.full(count, -1) for task, count in tasks.items()}
    for task, links in cfg["hierarchy_child_to_parent"].items():
        parents[task][[int(child) for child in links]] = list(links.values())
    prior = {} if head["type"] == "Linear" else {"orphan_prior": "epsilon"}
    return head_specs(tasks, {task: {**head, **prior} for task in tasks}, parents)


def golden_params(golden: dict[str, np.ndarray], tasks: dict[str, int], name: str) -> dict[str, Any]:
    def layer(task: str) -> dict[str, np.ndarray]:
        weight, bias = (golden[name.format(task=task, kind=kind)] for kind in ("weight", "bias"))
        return {"kernel": weight.T, "bias": bias}

    return {task: {"fc": layer(task)} for task in tasks}


@pytest.fixture(scope="module")
def golden(fixtures):
    return load_npz(fixtures / "models_heads.npz")


@pytest.fixture(scope="module")
def cfg(golden):
    return json.loads(str(golden["cfg"]))


@pytest.fixture(scope="module")
def golden_heads(golden, cfg):
    """Params of the heads of the golden numbers."""
    return golden_params(golden, cfg["tasks"], "{kind}/{task}")


def apply(heads: ClassificationHeads, params: Any, x: jax.Array, **kwargs: Any) -> Any:
    return heads.apply({"params": params}, x, **kwargs)


@jax.jit
def softmaxes(logits: Any) -> Any:
    return jax.tree.map(jax.nn.softmax, logits)


@functools.partial(jax.jit, static_argnums=0, static_argnames=("train", "refine"))
def compiled(heads: ClassificationHeads, params: Any, x: jax.Array, **kwargs: Any) -> Any:
    """As `apply`, one program."""
    return apply(heads, params, x, **kwargs)


def check(logits, golden, prefix):
    for task, values in logits.items():
        np.testing.assert_allclose(values, golden[f"{prefix}/{task}"], atol=1e-5, rtol=0, err_msg=f"{prefix}/{task}")


@pytest.mark.parametrize("variant", GOLDEN)
def test_golden_numbers(golden, cfg, golden_heads, variant):
    heads = ClassificationHeads(golden_specs(cfg, GOLDEN[variant]))
    x = golden["x"]
    check(compiled(heads, golden_heads, x), golden, variant.replace("_T", "_eval_T"))
    check(compiled(heads, golden_heads, x, refine=False), golden, "linear")
    if "hard" in variant:  # soft while training
        soft = variant.replace("hard", "soft").replace("_T", "_eval_T")
        check(compiled(heads, golden_heads, x, train=True), golden, soft)


@pytest.mark.parametrize(("name", "temperature"), [("T1", 1.0), ("T0.5", 0.5)])
def test_golden_numbers_with_noise(golden, cfg, golden_heads, name, temperature):
    specs = golden_specs(cfg, {"type": "ConditionalClassifier", "routing_strategy": "gumbel"})
    refinement = Refinement(temperature, "epsilon")
    pairs = ((specs[1], specs[2]), (specs[0], specs[1]))
    noise = {coarser.task: golden[f"gumbel_noise/{coarser.task}"] for _, coarser in pairs}

    @jax.jit
    def run(params: Any, x: jax.Array, noise: dict[str, jax.Array]) -> Any:
        logits = apply(ClassificationHeads(specs), params, x, refine=False)
        for spec, coarser in pairs:
            links = ParentLinks(spec.parents, coarser.num_classes)
            given = logits[spec.task], logits[coarser.task]
            logits[spec.task] = refinement.apply({}, *given, noise[coarser.task], links=links)
        return logits

    check(run(golden_heads, golden["x"], noise), golden, f"cc_gumbel_train_{name}")


def test_golden_gradients(golden, cfg, golden_heads):
    heads = ClassificationHeads(golden_specs(cfg, GOLDEN["cc_soft_T1"]))

    def loss(params: Any, x: jax.Array) -> jax.Array:
        log_prob = jax.nn.log_softmax(apply(heads, params, x)["taxa_L10"])
        return jnp.sum(log_prob * jnp.cos(jnp.arange(log_prob.size, dtype=jnp.float32)).reshape(log_prob.shape))

    params, x = jax.device_get(jax.jit(jax.grad(loss, (0, 1)))(golden_heads, golden["x"]))
    np.testing.assert_allclose(x, golden["grad/x"], atol=1e-5, rtol=1e-5)
    for task in ("taxa_L10", "taxa_L30"):
        weight = params[task]["fc"]["kernel"].T
        np.testing.assert_allclose(weight, golden[f"grad/weight/{task}"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("variant", sorted(GOLDEN.keys() - {"cc_hard_T0.5"}))
def test_golden_numbers_of_a_whole_model(fixtures, variant):
    golden = load_npz(fixtures / "models_v1_tiny.npz")
    cfg = json.loads(str(golden["cfg"]))
    heads = ClassificationHeads(golden_specs(cfg, GOLDEN[variant]))
    params = golden_params(golden, cfg["tasks"], "param/head.{task}.fc.{kind}")
    for rope in ("cos", "rot"):
        check(compiled(heads, params, golden[f"{rope}/feats"]), golden, f"{rope}/logits/{variant}")


# ---- four ranks ------------------------------------------------------------------------------------------------------


def four_ranks(kinds: str | dict[str, dict[str, Any]], **options: Any) -> ClassificationHeads:
    heads = {task: {"type": kinds, **options} for task in CLASSES} if isinstance(kinds, str) else kinds
    return ClassificationHeads(head_specs(CLASSES, heads, PARENTS), name="head")


@pytest.fixture(scope="module")
def x():
    return jax.device_put(np.random.default_rng(0).normal(size=(ROWS, FEATURES)).astype(np.float32))


@pytest.fixture(scope="module")
def params(x):
    """Weights that every head type takes, so large that refinement matters."""
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(four_ranks("Linear").init, jax.random.key(0), x)["params"]
    return jax.device_put(jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes))


@pytest.mark.parametrize("kind", HIERARCHICAL)
def test_parameters_and_order_are_those_of_linear(kind, x, params):
    heads = four_ranks(kind)
    shapes = jax.eval_shape(heads.init, jax.random.key(0), x)["params"]
    assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, params)
    order: list[str] = []  # as the heads give them: a program sorts its outputs
    jax.eval_shape(lambda params, x: order.extend(apply(heads, params, x)), params, x)
    assert order == list(CLASSES)
    logits = compiled(heads, params, x)
    plain = compiled(heads, params, x, refine=False)
    linear = compiled(four_ranks("Linear"), params, x)
    for task in CLASSES:
        np.testing.assert_array_equal(plain[task], linear[task])
        assert np.array_equal(logits[task], linear[task]) == (task == "taxa_L40")
    unrefined = head_specs(CLASSES, {task: {"type": kind} for task in CLASSES}, {}, "reference_unrefined")
    assert all(spec.parents == () for spec in unrefined)
    stored = compiled(ClassificationHeads(unrefined), params, x)
    jax.tree.map(np.testing.assert_array_equal, stored, linear)


def test_refinement_is_chosen_when_the_step_is_compiled(x, params):
    """`refine` is static, and without it nothing of the other ranks is computed."""
    heads = four_ranks("ConditionalClassifier", routing_strategy="gumbel")
    traced = jax.make_jaxpr(lambda params, x: apply(heads, params, x, train=True, refine=False))(params, x)
    assert {str(equation.primitive) for equation in traced.eqns} <= {
        "custom_vjp_call",  # the matrix product
        "add",
        "reshape",
        "broadcast_in_dim",
        "convert_element_type",
    }


@pytest.mark.parametrize("kind", HIERARCHICAL)
def test_impossible_children_lose(kind, x, params):
    """Less mass on a parent, less on its children; classes without a parent keep their logits."""
    heads = four_ranks(kind)
    moved = jax.tree.map(lambda leaf: leaf, params)
    moved["taxa_L40"]["fc"]["bias"] = params["taxa_L40"]["fc"]["bias"].at[1].add(-30.0)
    before, after = (compiled(heads, each, x) for each in (params, moved))
    probabilities = [softmaxes(logits) for logits in (before, after)]
    chain = {"taxa_L30": [1, 2], "taxa_L20": [1, 2, 5], "taxa_L10": [1, 2, 3, 7]}  # below class 1 of taxa_L40
    for task, children in chain.items():
        old, new = (np.asarray(prob[task]) for prob in probabilities)
        assert (new[:, children] < 1e-4 * old[:, children] + 1e-6).all(), task
    if kind != "PathSoftmax":
        plain = compiled(four_ranks("Linear"), params, x)["taxa_L30"]
        np.testing.assert_array_equal(np.asarray(before["taxa_L30"])[:, 0], np.asarray(plain)[:, 0])


@pytest.mark.parametrize("kind", HIERARCHICAL)
def test_rows_do_not_see_each_other(kind, x, params):
    heads = functools.partial(compiled, four_ranks(kind), params)
    alone, other = jax.device_get((heads(x), heads(x.at[1:].set(5.0))))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[0], b[0]), alone, other)


def test_path_probabilities_agree_over_all_ranks(x, params):
    prob = {
        task: np.exp(np.asarray(jax.nn.log_softmax(z) if task == "taxa_L40" else z, np.float64))
        for task, z in compiled(four_ranks("PathSoftmax"), params, x).items()
    }
    for (task, links), coarser in zip(PARENTS.items(), list(CLASSES)[1:]):
        np.testing.assert_allclose(prob[task].sum(axis=1), 1, atol=1e-6)
        for parent in range(CLASSES[coarser]):
            children = prob[task][:, np.asarray(links) == parent].sum(axis=1)
            assert (children <= prob[coarser][:, parent] * (1 + 1e-6)).all()


def test_every_rank_uses_its_own_type(x, params):
    """Above a Linear rank the finer ones route by its logits; the options are those of the finer rank."""
    heads = four_ranks(
        {
            "taxa_L10": {"type": "PathSoftmax"},
            "taxa_L20": {"type": "ConditionalClassifier", "temperature": 0.5},
            "taxa_L40": {"type": "HierarchicalSoftmax"},
        }
    )
    assert [bool(spec.parents) for spec in heads.specs] == [True, True, False, False]
    base = compiled(four_ranks("Linear"), params, x)
    logits = compiled(heads, params, x)
    for task in ("taxa_L30", "taxa_L40"):
        np.testing.assert_array_equal(logits[task], base[task])
    route = np.log(np.asarray(jax.nn.softmax(base["taxa_L30"] / 0.5)) + 1e-10)
    wanted = np.asarray(base["taxa_L20"]).copy()
    wanted[:, 1:] += route[:, PARENTS["taxa_L20"][1:]]
    np.testing.assert_allclose(logits["taxa_L20"], wanted, atol=1e-5)
    np.testing.assert_allclose(np.exp(logits["taxa_L10"]).sum(axis=1), 1, atol=1e-6)


def test_gumbel_routing(x, params):
    heads = four_ranks("ConditionalClassifier", routing_strategy="gumbel")
    soft = compiled(four_ranks("ConditionalClassifier"), params, x)
    jax.tree.map(np.testing.assert_array_equal, compiled(heads, params, x), soft)

    @jax.jit
    def noise(key: jax.Array) -> dict[str, jax.Array]:
        seen = {}

        def watch(next_fun, args, kwargs, context):
            if isinstance(context.module, Refinement) and context.method_name == "__call__":
                seen[context.module.path[0]] = args[2]
            return next_fun(*args, **kwargs)

        with nn.intercept_methods(watch):
            apply(heads, params, x, train=True, rngs={"gumbel": key})
        return seen

    first, again, other = (jax.device_get(noise(jax.random.key(seed))) for seed in (0, 0, 1))
    assert {task: values.shape for task, values in first.items()} == {
        "taxa_L30": (ROWS, 3),
        "taxa_L20": (ROWS, 4),
        "taxa_L10": (ROWS, 6),
    }
    jax.tree.map(np.testing.assert_array_equal, first, again)
    values = np.concatenate([draw.ravel() for draw in (*first.values(), *other.values())])
    assert len(np.unique(values)) == values.size  # of every rank and every key its own


def test_logits_are_float32_whatever_the_features(x, params):
    for kind in ("Linear", *HIERARCHICAL):
        logits = jax.eval_shape(lambda x, kind=kind: apply(four_ranks(kind), params, x), x.astype(jnp.bfloat16))
        assert {values.dtype for values in logits.values()} == {jnp.dtype("float32")}


def test_routing_and_refinement_are_calls_that_are_seen(x, params):
    seen = []

    def watch(next_fun, args, kwargs, context):
        if context.method_name == "__call__":
            seen.append((".".join(context.module.path), type(context.module).__name__))
        return next_fun(*args, **kwargs)

    heads = {"taxa_L10": {"type": "PathSoftmax"}, "taxa_L20": {"type": "ConditionalClassifier"}}
    with nn.intercept_methods(watch):
        jax.eval_shape(lambda: apply(four_ranks(heads), params, x))
    assert seen[-3:] == [
        ("taxa_L20.refinement", "Refinement"),
        ("taxa_L20.refinement.softmax", "Softmax"),
        ("taxa_L10.refinement", "PathProduct"),
    ]


def test_devices_exchange_nothing_but_gradients(x, params):
    """With the batch over two devices no head needs rows of the other one."""
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    batch, replicated = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
    heads = four_ranks(
        {
            "taxa_L10": {"type": "PathSoftmax"},
            "taxa_L20": {"type": "PathSoftmax"},
            "taxa_L30": {"type": "ConditionalClassifier", "routing_strategy": "gumbel"},
        }
    )

    def loss(params: Any, x: jax.Array, key: jax.Array) -> jax.Array:
        logits = apply(heads, params, x, train=True, rngs={"gumbel": key})
        return jnp.mean(jnp.stack([jax.nn.log_softmax(z)[:, 1] for z in logits.values()]))

    step = jax.jit(jax.grad(loss), in_shardings=(replicated, batch, replicated), out_shardings=replicated)
    program = step.lower(params, x, jax.random.key(0)).compile().as_text() or ""
    assert "all-reduce" in program
    for exchange in ("all-gather", "all-to-all", "collective-permute"):
        assert exchange not in program


def test_a_hierarchical_head_of_a_plugin(x, params):
    class Gated(HierarchicalHead):
        """Adds the parents' logits, scaled."""

        scale: float = 2.0

        def refine(self, logits_BC, parent_logits_BP, parents_C, *, train):
            links = ParentLinks(parents_C, parent_logits_BP.shape[1])
            return logits_BC + self.scale * links.of_parent(parent_logits_BP)

    HEADS.register("Gated")(Gated)
    try:
        heads = four_ranks({"taxa_L30": {"type": "Gated", "scale": 3.0, "use_bias": False}})
        logits = jax.device_get(compiled(heads, params, x))
    finally:
        del HEADS.entries["Gated"]
    base = np.asarray(x) @ np.asarray(params["taxa_L30"]["fc"]["kernel"])
    np.testing.assert_allclose(logits["taxa_L30"][:, 0], base[:, 0], atol=1e-5)
    np.testing.assert_allclose(logits["taxa_L30"][:, 3], base[:, 3] + 3 * logits["taxa_L40"][:, 2], atol=1e-5)


# ---- settings that cannot work ---------------------------------------------------------------------------------------

SECTION = r"model\.classification\.heads\.taxa_L10"


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (
            {"type": "ConditionalClassifier", "temperature": 0.0},
            f"{SECTION}: temperature = 0.0 is out of range; it must be above 0",
        ),
        ({"type": "ConditionalClassifier", "temperature": float("nan")}, "temperature = nan is out of range"),
        (
            {"type": "ConditionalClassifier", "routing_strategy": "top"},
            f"{SECTION}: routing_strategy = 'top' is unknown; choose one of soft, hard, gumbel",
        ),
        (
            {"type": "HierarchicalSoftmax", "orphan_prior": "zero"},
            f"{SECTION}: orphan_prior = 'zero' is unknown; choose one of neutral, epsilon",
        ),
        ({"type": "ConditionalClassifier", "orphan_prior": ""}, "orphan_prior = '' is unknown"),
        (
            {"type": "HierarchicalSoftmax", "temperature": 2.0},
            rf"{SECTION}\.temperature = 2.0 is no option of HierarchicalSoftmax; its options: use_bias, orphan_prior",
        ),
        ({"type": "Deep"}, rf"{SECTION}\.type = 'Deep' is unknown; choose one of Linear, ConditionalClassifier"),
    ],
)
def test_options_that_cannot_work(head, message):
    with pytest.raises(ValueError, match=message):
        head_specs(CLASSES, {"taxa_L10": head}, PARENTS)


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        (None, rf"{SECTION}\.type = 'PathSoftmax' needs the parent of every class in taxa_L20; .* or use Linear"),
        ((1, 2), rf"{SECTION}\.type = 'PathSoftmax': parents have shape \(2,\) .* one integer for each of the 9"),
        ((0.5,) * 9, "dtype float64; give one integer"),
        ((0, 6) + (1,) * 7, "the parent of class 1 is 6; it must be below 6, the number of classes of taxa_L20, or -1"),
        ((0, 1, -2) + (1,) * 6, "the parent of class 2 is -2"),
    ],
)
def test_parents_that_cannot_work(parents, message):
    given = {} if parents is None else {"taxa_L10": parents}
    with pytest.raises(ValueError, match=message):
        head_specs(CLASSES, {"taxa_L10": {"type": "PathSoftmax"}}, given)


def test_unknown_hierarchy_mode():
    with pytest.raises(
        ValueError, match=r"classification.hierarchy_mode = 'off' is unknown; choose one of refine, ref"
    ):
        head_specs(CLASSES, {}, PARENTS, "off")


def test_the_coarsest_rank_and_linear_heads_need_no_parents():
    specs = head_specs({"a": 3, "b": 2}, {"b": {"type": "PathSoftmax", "use_bias": False}})
    assert specs == (HeadSpec("a", 3, "Linear", ()), HeadSpec("b", 2, "PathSoftmax", (("use_bias", False),)))
