"""What every model family keeps to: whatever is registered is tested here, and one family of a plugin beside it.

All variants in shapes alone; numbers at the smallest variant, which a family calls "test" or "tiny", with random
weights.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.config import get_config, load_config
from linnaeus_jax.config.plugins import import_plugins
from linnaeus_jax.config.typed import typed
from linnaeus_jax.learning.filters import parse_filter
from linnaeus_jax.learning.optimizers import build_optimizer
from linnaeus_jax.models import initial
from linnaeus_jax.models.names import (
    ParameterInfo,
    abstract_variables,
    initial_variables,
    named_leaves,
    parameter_table,
)
from linnaeus_jax.registry import MODELS
from tests.compiling import LIKE_USERS
from tests.models.builds import build
from tests.plugins import plugins_kept

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "tests" / "extending" / "model_example.py"
FAMILIES = (*MODELS, "SmallNet")
VARIANTS = [(name, variant) for name in MODELS for variant in MODELS[name].variants or ("",)]
VARIANTS += [("SmallNet", "narrow"), ("SmallNet", "wide")]

TASKS = {"species": 7, "genus": 4, "family": 2}
PARENTS = {"species": (-1, 0, 0, 1, 2, 3, 3), "genus": (-1, 0, 1, 1)}
COMPONENTS = (("TEMPORAL", 2), ("SPATIAL", 3))
SIZE = 64
SETTINGS: dict[str, Any] = {
    "components": COMPONENTS,
    "num_classes": TASKS,
    "parents": PARENTS,
    "img_size": SIZE,
    "drop_rate": 0.1,
    "attn_drop_rate": 0.1,
    "drop_path_rate": 0.2,
    "classification__heads__species__type": "ConditionalClassifier",
    "classification__heads__genus__type": "HierarchicalSoftmax",
}
#: the form of depthwise convolutions that is one operation, traced and compiled in half of the time; the form of users
#: gives its values and gradients by tests/models/test_depthwise.py
ONE_OPERATION: dict[str, Any] = {"depthwise_impl": "lax"}
#: forms of one computation; a family has those whose fields it has
FORMS = ({"remat": True}, {"scan_layers": True}, {"remat": True, "scan_layers": True})

#: family -> parameter of the smallest variant -> why its gradient is zero in training
DEAD: dict[str, dict[str, str]] = {
    "mFormerV1": {"aggregate.bias": "the LayerNorm that follows takes away what is added to all channels"},
    "EfficientNet": {
        f"_blocks.{block}._bn2.bias": "the 1x1 convolutions that follow pass it on to BatchNorms, which take it away"
        for block in range(10)
    },
    "Joined": {
        f"trunks_{place}._blocks.{block}._bn2.bias": "as in an EfficientNet"
        for place in (0, 1)
        for block in range(10)
        if (place, block) not in ((1, 6), (1, 8))  # of these the branch of one row is dropped, so that rows differ
    },
    "mFormerV0": {
        "aggregate.bias": "the LayerNorm that follows takes away what is added to all channels",
        "stage_1.0._bn2.bias": "the 1x1 convolution that follows passes it on to a BatchNorm, which takes it away",
        # so it is with the last block of every variant
        "stage_4.0.attn.relative_position_bias_table": "only the class token leaves the last block, and all keys have "
        "the same bias for it, which the softmax takes away",
    },
}
#: whose sums over devices are rounded within the tolerances of their forms
OVER_DEVICES = ("mFormerV0", "mFormerV1")
#: unoptimised code compiles in half of the time
FAST_COMPILE: Any = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def jit(function: Any, **options: Any) -> Any:
    return jax.jit(function, compiler_options=FAST_COMPILE | options)


@pytest.fixture(scope="module", autouse=True)
def plugin() -> Iterator[None]:
    config = get_config()
    config.env.plugins = (str(PLUGIN),)
    with plugins_kept():
        import_plugins(config)
        yield


def forms_of(model: Any) -> list[dict[str, bool]]:
    """Each of `FORMS` as far as the family has its fields, once."""
    fields = model.__dataclass_fields__
    forms = [{name: value for name, value in form.items() if name in fields} for form in FORMS]
    return [form for i, form in enumerate(forms) if form and form not in forms[:i]]


def abstract(model: Any, batch: int = 2) -> Any:
    """Shapes of all variables."""
    return jax.eval_shape(model.init, jax.random.key(0), *inputs(batch))


def inputs(batch: int, size: tuple[int, int] = (SIZE, SIZE)) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """Shapes of images and metadata."""
    columns = sum(count for _, count in COMPONENTS)
    return jax.ShapeDtypeStruct((batch, *size, 3), np.float32), jax.ShapeDtypeStruct((batch, columns), np.float32)


# ---- all variants, in shapes


class Traced(NamedTuple):
    """One abstract forward pass of a variant."""

    model: Any
    variables: Any
    logits: dict[str, jax.Array]  # tracers, in the order of the model
    order: list[tuple[str, ...]]  # paths of modules, as they are called
    table: list[ParameterInfo]


@pytest.fixture(scope="module", params=VARIANTS, ids="_".join)
def full(request) -> Traced:
    family, variant = request.param
    # what is called and which variables there are does not depend on the form
    model = build(type=family, variant=variant, **ONE_OPERATION, **SETTINGS)
    order: list[tuple[str, ...]] = []
    owners: dict[tuple[str, ...], str] = {}
    logits: dict[str, jax.Array] = {}

    def note(next_fun: Any, args: Any, kwargs: Any, context: Any) -> Any:
        order.append(context.module.path)
        owners[context.module.path] = type(context.module).__name__
        out = next_fun(*args, **kwargs)
        if (context.module.path, context.method_name) == ((), "__call__"):
            logits.update(out)
        return out

    def init(key: jax.Array) -> Any:
        return dict(model.init(key, *(jnp.zeros(x.shape, x.dtype) for x in inputs(2))))

    with nn.intercept_methods(note):
        variables = initial.trace(init).shapes
    leaves = named_leaves(variables["params"])
    table = [ParameterInfo(name, path, tuple(leaf.shape), owners[path[:-1]]) for name, path, leaf in leaves]
    return Traced(model, variables, logits, order, table)


def test_logits(full):
    assert list(full.logits) == list(TASKS)
    assert {task: (x.shape, x.dtype) for task, x in full.logits.items()} == {
        task: ((2, count), jnp.float32) for task, count in TASKS.items()
    }


def test_names_and_stages(full):
    """Every parameter has one canonical name and one stage; a stage is a text."""
    names = [row.name for row in full.table]
    assert len(set(names)) == len(names) == len(jax.tree.leaves(full.variables["params"]))
    stages = {name: full.model.stage_of(name) for name in names}
    assert all(isinstance(stage, str) and stage for stage in stages.values())
    patterns = getattr(full.model, "stage_patterns", {})
    general = {name for name in names if sum(bool(pattern.search(name)) for pattern in patterns.values()) > 1}
    assert {stages[name] for name in general} <= {"stages.rope_freqs"}  # the one group that lies inside another
    if patterns:
        assert set(stages.values()) == set(patterns)


def test_parameters_are_float32(full):
    assert {leaf.dtype for leaf in jax.tree.leaves(full.variables)} == {jnp.dtype("float32")}


@pytest.mark.parametrize("source", ["default", "finetune_groups"])
def test_every_parameter_has_one_optimizer_group(full, source):
    config = get_config()
    if source != "default":
        config = load_config([f"--config={ROOT / 'configs' / source}.py"])[0]
        settings = config.optimizer
        with settings.unlocked():  # a family need not have what another one has
            for name in [name for name in settings.parameter_groups if name not in ("enabled", "default")]:
                matches = parse_filter(settings.parameter_groups[name].filter, name)
                if not any(map(matches, full.table)):
                    del settings.parameter_groups[name]
    optimizer = build_optimizer(typed(config).optimizer, full.table, stage_of=full.model.stage_of)
    assert [row.name for row in optimizer.rows] == [row.name for row in full.table]
    assert optimizer.overlaps == ()
    assert {row.group for row in optimizer.rows} == set(optimizer.lr_multipliers)


def test_layers_are_numbered_as_they_are_computed(full):
    """0 at the stem, the most at the heads, and never less for a module that is called later."""
    if full.model.layer_index is None:
        return
    index = {row.path: full.model.layer_index(row.name) for row in full.table}
    called = list(dict.fromkeys(full.order))
    owned = [[path for path in index if path[:-1] == module] for module in called if module]
    depths = [index[path] for paths in owned for path in paths]
    assert depths == sorted(depths)
    heads = [depth for path, depth in index.items() if path[0] == "head"]
    assert min(index.values()) == depths[0] == 0
    assert {*heads} == {max(index.values())}
    assert set(index.values()) == set(range(max(heads) + 1))


def check_forms(model: Any, plain: Any) -> None:
    for form in forms_of(model):
        assert abstract(model.clone(**form)) == plain, form


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_names_and_shapes_of_the_last_variant_do_not_depend_on_scan_or_remat(family):
    """Those of the smallest are compared below, with what is computed from them."""
    variant = [of for name, of in VARIANTS if name == family][-1]
    model = build(type=family, variant=variant, depthwise_impl="lax", **SETTINGS)  # one operation to trace
    check_forms(model, abstract(model))


@pytest.mark.parametrize("family", FAMILIES)
def test_variants_state_the_same_settings(family):
    variants = MODELS[family].variants
    assert len({tuple(sorted(fields)) for fields in variants.values()}) <= 1


# ---- the smallest variant, in numbers


def random_variables(model: Any) -> Any:
    """Values of the size of trained ones, none zero; no compiled initialisation is needed for them."""
    rng, shapes = np.random.default_rng(0), abstract_variables(model)
    values = []
    for keys, leaf in jax.tree.leaves_with_path(shapes):
        name, x = keys[-1].key, rng.normal(size=leaf.shape).astype(np.float32)
        if name == "kernel":
            x /= np.sqrt(np.prod(leaf.shape[:-1]))
        elif name in ("scale", "running_var", "gamma"):
            x = np.exp(0.2 * x)
        elif name != "freqs":
            x *= 0.1
        values.append(x)
    return jax.tree.unflatten(jax.tree.structure(shapes), values)


def loss_of(logits: dict[str, jax.Array], weight_B: jax.Array) -> jax.Array:
    """Every logit weighted by a cosine of its position, rows by `weight_B`."""
    total = jnp.zeros(())
    for logits_BC in logits.values():
        waves = jnp.cos(jnp.arange(logits_BC.shape[1], dtype=jnp.float32))[None]
        total += jnp.sum(jnp.sin(logits_BC) * waves * weight_B[:, None])
    return total


def training(model: Any) -> Any:
    """(variables, batch) -> ((loss, (logits, new state)), gradients) of a step with dropout and drop path."""

    def loss(params: Any, state: Any, batch: dict[str, jax.Array]) -> Any:
        keys = {name: jax.random.key(i) for i, name in enumerate(("dropout", "drop_path", "gumbel"))}
        logits, state = model.apply(
            {"params": params, **state},
            batch["image"],
            batch["meta"],
            meta_valid_BK=batch["valid"],
            row_weight_B=batch["weight"],
            train=True,
            rngs=keys,
            mutable=list(state),
        )
        return loss_of(logits, batch["weight"]), (logits, state)

    def step(variables: Any, batch: dict[str, jax.Array]) -> Any:
        state = {name: value for name, value in variables.items() if name != "params"}
        return jax.value_and_grad(loss, has_aux=True)(variables["params"], state, batch)

    return step


class Small(NamedTuple):
    """The smallest variant of a family with random weights, and a batch of 4 rows of which the last fills it up."""

    family: str
    model: Any
    variables: Any
    batch: dict[str, np.ndarray]

    @property
    def light(self) -> Any:
        """The model with depthwise convolutions of one operation."""
        fields = self.model.__dataclass_fields__
        return self.model.clone(**{name: form for name, form in ONE_OPERATION.items() if name in fields})

    @property
    def shapes(self) -> Any:
        """Those of the variables, as `abstract` has them."""
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), self.variables)

    def with_(self, **changed: np.ndarray) -> dict[str, np.ndarray]:
        return {**self.batch, **changed}


@pytest.fixture(scope="module", params=FAMILIES)
def small(request) -> Small:
    variants = MODELS[request.param].variants or ("",)
    variant = next((name for name in ("test", "tiny") if name in variants), next(iter(variants)))
    model, rng = build(type=request.param, variant=variant, **SETTINGS), np.random.default_rng(1)
    image, meta = (rng.normal(size=x.shape).astype(np.float32) for x in inputs(4))
    batch = {"image": image, "meta": meta, "valid": np.ones((4, 2), bool), "weight": np.array([1, 1, 1, 0], np.float32)}
    return Small(request.param, model, random_variables(model), batch)


def compiled(small: Small, function: Any, **options: Any) -> Any:
    """`function` of variables and batch with those of `small`, not as constants: they make compiling slow."""
    return functools.partial(jit(function, **options), small.variables)


@pytest.fixture(scope="module")
def evaluate(small) -> Any:
    """(batch) -> logits in evaluation, compiled once."""
    return compiled(
        small,
        lambda variables, batch: small.light.apply(
            variables,
            batch["image"],
            batch["meta"],
            meta_valid_BK=batch["valid"],
            row_weight_B=batch["weight"],
        ),
    )


def rounded(small: Any) -> dict[str, Any]:
    """Options that let different programs round alike: EfficientNet's gradients are sums of many large terms."""
    return LIKE_USERS if small.family == "EfficientNet" else {}


@pytest.fixture(scope="module")
def train_rounded(small) -> Any:
    """(batch) -> ((loss, (logits, state)), gradients) in training, in the form of users."""
    return compiled(small, training(small.model), **rounded(small))


def assert_close(left: Any, right: Any, rows: Any = ..., atol: float = 1e-5) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[rows], b[rows], atol=atol, rtol=0), left, right)


def test_names_and_shapes_of_the_smallest_do_not_depend_on_scan_or_remat(small):
    check_forms(small.light, small.shapes)
    shapes = [(name, path, leaf.shape) for name, path, leaf in named_leaves(small.variables["params"])]
    assert [(row.name, row.path, row.shape) for row in parameter_table(small.model)] == shapes


def test_evaluation_of_a_row_depends_on_no_other(small, evaluate):
    expected = evaluate(small.batch)
    other = small.with_(image=small.batch["image"].copy(), meta=small.batch["meta"].copy())
    other["image"][2:], other["meta"][2:] = 3.0, -2.0
    found = evaluate(other)
    assert_close(found, expected, slice(2), atol=1e-6)
    assert not np.allclose(found["species"][2], expected["species"][2], atol=1e-3)
    other["image"][3], other["meta"][3] = np.nan, np.nan
    assert_close(evaluate(other), found, slice(3), atol=1e-6)
    assert_close(evaluate(small.with_(weight=np.array([1, 1, 0, 0], np.float32))), expected, slice(2), atol=1e-6)


@pytest.mark.slow
def test_rows_of_weight_0_do_not_count_in_training(small, train_rounded):
    other = small.with_(image=small.batch["image"].copy(), meta=small.batch["meta"].copy())
    other["image"][3], other["meta"][3] = 5.0, -5.0
    (loss, (logits, state)), grads = train_rounded(small.batch)
    (other_loss, (other_logits, other_state)), other_grads = train_rounded(other)
    assert_close(other_logits, logits, slice(3))
    assert_close((other_loss, other_state), (loss, state))
    scale = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(grads))
    assert_close(other_grads, grads, atol=1e-5 * scale)
    for name, value in state.items():
        moved = jax.tree.map(lambda a, b: not np.array_equal(a, b), value, small.variables[name])
        assert all(jax.tree.leaves(moved)), name


@pytest.mark.slow
def test_every_parameter_has_a_gradient(small, train_rounded):
    grads = {name: np.abs(np.asarray(leaf)).max() for name, _, leaf in named_leaves(train_rounded(small.batch)[1])}
    assert all(np.isfinite(size) for size in grads.values())
    typical = float(np.median([*grads.values()]))
    assert {name for name, size in grads.items() if size < 1e-5 * typical} == set(DEAD.get(small.family, {}))


@pytest.mark.slow
def test_scan_remat_and_plain_are_one(small, train_rounded):
    """With what dropout and drop path draw; of the mFormers the last form over two devices, too."""
    (loss, (logits, state)), grads = train_rounded(small.batch)
    scale = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(grads))
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, everywhere = (jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes)) for axes in (["data"], []))
    forms = forms_of(small.model)
    for form in forms:
        given = small.variables, small.batch
        if form is forms[-1] and small.family in OVER_DEVICES:
            given = jax.device_put(given[0], everywhere), jax.device_put(given[1], rows)
        other = jit(training(small.model.clone(**form)), **rounded(small))
        (other_loss, (other_logits, other_state)), other_grads = other(*given)
        assert_close((other_loss, other_logits, other_state), (loss, logits, state))
        assert_close(other_grads, grads, atol=1e-5 * scale)


@pytest.mark.slow
def test_initial_values(small):
    built = initial_variables(small.model, jax.random.key(0))
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), built)
    assert shapes == small.shapes
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(built))


def test_missing_metadata_are_zeros(small, evaluate):
    zeros = small.with_(meta=np.zeros_like(small.batch["meta"]))
    expected = evaluate(zeros)
    assert_close(evaluate({**zeros, "valid": np.zeros((4, 2), bool)}), expected)
    none = compiled(small, small.light.apply)(small.batch["image"])
    assert_close(none, expected)
    assert not np.allclose(expected["species"], evaluate(small.batch)["species"], atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("small", list(MODELS), indirect=True)  # SmallNet has no tokens
def test_a_masked_token_has_no_influence(small):
    model = small.model.clone(missing_metadata="mask")
    apply = compiled(small, lambda *inputs: model.apply(*inputs[:-1], meta_valid_BK=inputs[-1]))
    run = functools.partial(apply, small.batch["image"])
    valid = np.array([[True, True], [False, True], [True, False], [False, False]])
    other = small.batch["meta"] + np.repeat(~valid, [2, 3], axis=1)
    assert_close(run(other, valid), run(small.batch["meta"], valid))
    changed = np.abs(run(other, np.ones_like(valid))["species"] - run(small.batch["meta"], valid)["species"]).max(1)
    assert changed[0] < 1e-6
    assert (changed[1:] > 1e-3).all()


def test_wrong_metadata_are_refused(small):
    image, _ = inputs(4)
    for shape in ((4, 4), (3, 5)):
        meta = jax.ShapeDtypeStruct(shape, np.float32)
        with pytest.raises(ValueError, match=rf"meta has shape \({shape[0]}, {shape[1]}\); \[4, 5\] is needed"):
            jax.eval_shape(small.light.apply, small.variables, image, meta)


@pytest.mark.parametrize("size", [(96, 96), (33, 70), (16, 16)])
def test_other_image_sizes_work_or_are_refused(small, size):
    def outcome() -> Any:
        try:
            logits = jax.eval_shape(small.light.apply, small.variables, *inputs(2, size))
        except ValueError as error:
            return str(error).split(" (")[0]
        return {task: x.shape for task, x in logits.items()}

    works = {task: (2, count) for task, count in TASKS.items()}
    assert outcome() in ([works] if min(size) >= 32 else [works, "image has shape"])


# ---- low precision


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations at any depth."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from equations(inner)


#: primitives of softmax, norms, priors and rotations, which lose too much in bfloat16
FLOAT32_ONLY = ("exp", "exp2", "log", "log1p", "expm1", "rsqrt", "sqrt", "sin", "cos", "reduce_sum", "cumsum")


def test_bfloat16_and_its_float32_islands(small):
    """Products are taken in bfloat16; softmax, norms, angles, priors and heads in float32, as are all variables."""
    model, seen = small.model.clone(dtype=jnp.bfloat16), []

    def note(next_fun: Any, args: Any, kwargs: Any, context: Any) -> Any:
        out = next_fun(*args, **kwargs)
        if context.method_name == "__call__" and isinstance(out, jax.Array):
            seen.append((context.module, args, out))
        return out

    with nn.intercept_methods(note):
        traced, shapes = jax.make_jaxpr(model.apply, return_shape=True)(small.variables, *inputs(4))
    assert {x.dtype for x in shapes.values()} == {jnp.dtype("float32")}
    for module, args, out in seen:
        if type(module).__name__ in ("Softmax", "Dropout"):
            assert args[0].dtype == out.dtype, module.path
            assert out.dtype == jnp.float32 or type(module).__name__ == "Dropout", module.path
        elif module.path[0] != "head":
            assert out.dtype == jnp.bfloat16, module.path
    found = list(equations(traced.jaxpr))
    wrong = {
        equation.primitive.name
        for equation in found
        if equation.primitive.name in FLOAT32_ONLY and equation.invars[0].aval.dtype == jnp.bfloat16
    }
    assert wrong == set()
    products = [e for e in found if e.primitive.name in ("dot_general", "conv_general_dilated")]
    low = [e for e in products if e.invars[0].aval.dtype == jnp.bfloat16]
    assert len(low) >= len(products) - len(TASKS)  # but those of the heads


def test_bfloat16_statistics_stay_float32(small):
    model = small.light.clone(dtype=jnp.bfloat16)
    (_, (_, state)), grads = jax.eval_shape(training(model), small.variables, small.batch)
    assert {leaf.dtype for leaf in jax.tree.leaves((state, grads))} == {jnp.dtype("float32")}
