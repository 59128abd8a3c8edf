"""From the config and the data to the program of a run: model, objective, update, evaluation, initial state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax import backend
from linnaeus_jax.config.derived import gradnorm_enabled, mixes, null_masking
from linnaeus_jax.config.typed import Config
from linnaeus_jax.data.dataset import Dataset
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.learning import gradnorm, losses, meta_masking, mixing, optimizers, task_weights
from linnaeus_jax.learning.augmentation import AugmentSettings
from linnaeus_jax.learning.class_weights import task_class_weights
from linnaeus_jax.learning.filters import parse_filter
from linnaeus_jax.learning.smoothing import TaxonomySmoothing
from linnaeus_jax.learning.transforms import FROZEN
from linnaeus_jax.metrics import custom
from linnaeus_jax.metrics.extras import META_STATES, PhaseExtras
from linnaeus_jax.metrics.names import split_result
from linnaeus_jax.metrics.phases import REGISTERED
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.models import HeadSpec, ModelFamily, ParameterInfo, build_model, initial_variables, parameter_table
from linnaeus_jax.models.batch_norm import with_moment_counts
from linnaeus_jax.models.factory import split_block
from linnaeus_jax.models.names import entered, trained_from
from linnaeus_jax.schedules import early_stop
from linnaeus_jax.schedules.learning_rate import build_scheduler
from linnaeus_jax.schedules.probabilities import build_probabilities
from linnaeus_jax.schedules.resolved import ResolvedSchedule
from linnaeus_jax.step.evaluation import EvaluationProgram
from linnaeus_jax.step.objective import MaskSettings, Objective
from linnaeus_jax.step.probes import Probe
from linnaeus_jax.step.rng import stream
from linnaeus_jax.step.state import Statistics, TrainState
from linnaeus_jax.step.train_step import StepSettings, make_train_step

#: rows whose predictions probes may show
PREVIEW_ROWS = 10


@dataclass(frozen=True, eq=False)
class Program:
    """The pure functions of a run and what describes them."""

    model: ModelFamily
    objective: Objective
    gradnorm_objective: Objective  # the same numbers; only what the backward pass recomputes may differ
    settings: StepSettings
    evaluation: EvaluationProgram
    parameters: tuple[ParameterInfo, ...]
    initial_weights: NDArray[np.float32]  # [T]
    ema: bool
    stored: jax.ShapeDtypeStruct | None = None  # of a picture, where `objective.block` is given
    views: int = 1  # of each training row that are stored
    may_recompute: frozenset[str] = frozenset()  # steps that recompute activations if the memory does not suffice

    def initial_state(self) -> TrainState:
        """Parameters and optimizer state of step 0, from the seed; pure, to be jitted with the wanted placement."""
        return self.state_from(*self.initial_variables())

    def initial_variables(self) -> tuple[Any, Any]:
        """(parameters, non-trainable collections) from the seed; fast outside of a trace, see `models/initial.py`."""
        variables = initial_variables(self.model, stream(self.objective.seed, "init"))
        return variables.pop("params"), variables

    def state_from(self, params: Any, model_state: Any) -> TrainState:
        """The state of step 0 with these parameters and non-trainable collections; pure."""
        zero = jnp.zeros((), jnp.int32)
        return TrainState(
            step=zero,
            params=params,
            model_state=with_moment_counts(model_state),
            opt_state=self.settings.optimizer.transform.init(params),
            gradnorm=gradnorm.init_gradnorm(self.initial_weights),
            ema=jax.tree.map(jnp.array, params) if self.ema else None,
            skipped=zero,
            skipped_in_a_row=zero,
            interval=self.fresh_interval(),
        )

    def fresh_interval(self) -> Statistics:
        """Training statistics of no update at all."""
        return Statistics.zeros(self.objective.tasks, len(self.evaluation.component_names), self.objective.extras)

    @property
    def step_names(self) -> tuple[str, ...]:
        """Train steps that a run of this program makes: `plain`, and with GradNorm `gradnorm`."""
        return ("plain",) if self.settings.gradnorm is None else ("plain", "gradnorm")

    def train_step(self, name: str, *, recompute: bool = False) -> Any:
        """The pure train step `plain`, or `gradnorm`, which also measures and moves the task weights.

        Args:
          recompute: recompute activations in the backward pass, whatever was configured.
        """
        return make_train_step(self.objective_of(name, recompute=recompute), self.settings, measure=name == "gradnorm")

    def objective_of(self, name: str, *, recompute: bool = False) -> Objective:
        """What the train step `name` differentiates; arguments as for `train_step`."""
        objective = self.gradnorm_objective if name == "gradnorm" else self.objective
        return dataclasses.replace(objective, model=objective.model.clone(remat=True)) if recompute else objective


def compute_dtype(config: Config) -> Any:
    """bfloat16 on accelerators and float32 on CPU, unless the config says otherwise."""
    name = config.train.compute_dtype
    if name == "auto":
        name = backend.automatic_dtype()
    return {"float32": jnp.float32, "bfloat16": jnp.bfloat16}[name]


def model_from_config(config: Config, dataset: Dataset, step_name: str = "plain") -> ModelFamily:
    """The model that the config names, sized for the data, as the step `plain` or `gradnorm` uses it.

    Raises:
      ValueError: a setting that does not fit, naming key, value and fix.
    """
    remat = config.train.gradient_checkpointing
    return build_model(
        config.model,
        components=[(component.name, component.stop - component.start) for component in dataset.components],
        num_classes=dataset.num_classes,
        img_size=config.data.img_size,
        parents=dataset.tree.parent,
        dtype=compute_dtype(config),
        remat=bool(remat.enabled_gradnorm_steps if step_name == "gradnorm" else remat.enabled_normal_steps),
    )


def build_criteria(config: Config, dataset: Dataset, split: str) -> dict[str, losses.Criterion]:
    """Criterion of every task for `train` or `val`.

    Raises:
      ValueError: a wrong loss setting, naming the key.
    """
    tasks, settings = dataset.tasks, config.loss.taxonomy_smoothing
    key = f"loss.task_specific.{split}.funcs"
    names = task_weights.per_task(tuple(config.loss.task_specific[split].funcs), tasks, key)
    enabled = task_weights.per_task(tuple(settings.enabled) or (False,), tasks, "loss.taxonomy_smoothing.enabled")
    parents = [dataset.tree.parent[task] for task in tasks]
    criteria = {}
    for index, (task, name) in enumerate(zip(tasks, names, strict=True)):
        smoothing = None
        if enabled[index]:
            name = losses.TAXONOMY
            smoothing = TaxonomySmoothing.from_parents(
                parents,
                index,
                alpha=settings.alpha,
                beta=settings.beta,
                fallback_to_uniform=settings.fallback_to_uniform,
            )
        criteria[task] = losses.make_criterion(
            name,
            num_classes=dataset.num_classes[task],
            label_smoothing=config.model.label_smoothing,
            smoothing=smoothing,
            options=config.loss.get(name),
        )
    return criteria


def build_class_weights(config: Config, dataset: Dataset, split: str) -> dict[str, np.ndarray] | None:
    """Class weights of every task from the training counts; None where they are off for `split`."""
    settings = config.loss.grad_weighting.class_weights
    if not settings[split] or set(settings.method) == {"none"}:
        return None
    return task_class_weights(
        {task: dataset.class_counts["train"][task] for task in dataset.tasks},
        method=settings.method,
        smoothing_factor=settings.smoothing_factor,
        cap=settings.cap,
        base=settings.base,
        log_base=settings.log_base,
        normalize=settings.normalize,
        class_name=dataset.class_name,
    )


def build_program(
    config: Config,
    dataset: Dataset,
    resolved: ResolvedSchedule,
    block: int,
    probes: Sequence[Probe] = (),
    gather: Callable[[Any], Any] | None = None,
    loaded: frozenset[str] | None = None,
) -> Program:
    """Builds everything static; nothing is computed on a device but shapes.

    Args:
      block: rows among which the plan drew mixing partners.
      probes: measurements to trace into the train step.
      gather: see `Placement.gather`; None: the parameters are whole on every device.
      loaded: names of the parameters that begin as in pretrained weights; None: there are no such weights.

    Raises:
      ValueError: settings that do not fit the data or each other, naming key, value and fix.
    """
    model, gradnorm_model = (model_from_config(config, dataset, name) for name in ("plain", "gradnorm"))
    objective = dataclasses.replace(
        build_objective(config, dataset, resolved, model, block),
        preview_rows=PREVIEW_ROWS if probes else 0,
        gather=gather,
    )
    gradnorm_objective = dataclasses.replace(objective, model=gradnorm_model)
    evaluation = build_evaluation(config, dataset, model)
    _check_measured(config, dataset, resolved, objective, evaluation)
    parameters = tuple(parameter_table(model))
    trained = None if objective.block is None else trained_from(model, objective.block)
    return Program(
        model=model,
        objective=objective,
        gradnorm_objective=gradnorm_objective,
        settings=build_step_settings(config, dataset, resolved, model, parameters, probes, loaded, trained),
        evaluation=evaluation,
        parameters=parameters,
        initial_weights=_initial_task_weights(config, dataset),
        ema=config.train.ema.enabled,
        stored=None if objective.block is None else entered(model, objective.block),
        views=1 + config.train.tune_views,
        may_recompute=_may_recompute(config),
    )


def _initial_task_weights(config: Config, dataset: Dataset) -> NDArray[np.float32]:
    """float32 [T]."""
    weighting = config.loss.grad_weighting.task
    return task_weights.initial_task_weights(
        init_weights=tuple(weighting.init_weights),
        init_strategy=weighting.init_strategy,
        density=[dataset.task_label_density["train"][task] / 100 for task in dataset.tasks],
        num_classes=[dataset.num_classes[task] for task in dataset.tasks],
    )


def _check_measured(
    config: Config,
    dataset: Dataset,
    resolved: ResolvedSchedule,
    objective: Objective,
    evaluation: EvaluationProgram,
) -> None:
    """Checks the phases and metrics of plugins, and that what stops the run and ranks its checkpoints is measured.

    Raises:
      ValueError: they do not fit the data, or the metric is measured nowhere.
    """
    _check_phases(evaluation.component_names, objective.model.img_size, stored=objective.block is not None)
    for extras in (objective.extras, evaluation.extras):
        extras.check(dataset.num_classes, dataset.meta_dim, len(dataset.components))
    stop, ranked_by = resolved.early_stop, early_stop.ranking_key(config, evaluation.component_names)
    for phase, key in ((stop.phase, stop.metric if stop.active else ""), split_result(ranked_by)):
        extras = objective.extras if phase == "train" else evaluation.extras
        early_stop.require_measured(key, extras.subsets)


def _check_phases(components: Sequence[str], size: tuple[int, int], *, stored: bool = False) -> None:
    """Tries the phases of plugins on abstract pictures.

    Args:
      stored: what is read are no pictures, but what a block of the model is given.

    Raises:
      ValueError: a component that is not there, or a view that has no pictures, fails or returns something else.
    """
    for phase in REGISTERED.values():
        meta_masking.component_mask(components, phase.masked)
        if stored and phase.view is not None:
            raise InputError(
                f"phase {phase.name!r} of a plugin changes the pictures that the model is shown, and train.tune reads "
                "what was stored of them instead; leave the plugin out of env.plugins, or set train.tune = 'full'"
            )
        pictures = jax.ShapeDtypeStruct((2, *size, 3), jnp.uint8)
        try:
            found = pictures if phase.view is None else jax.eval_shape(phase.view, pictures)
            if (found.dtype, found.ndim, found.shape[0]) != (pictures.dtype, pictures.ndim, 2):
                raise TypeError(f"it returned {found.dtype} {list(found.shape)}")
        except Exception as error:  # the view is the user's: whatever it raises is reported under its name
            raise InputError(
                f"phase {phase.name!r} fails with {type(error).__name__}: {error}; its view takes pictures "
                "uint8 [B, H, W, 3] and returns such"
            ) from error


def _may_recompute(config: Config) -> frozenset[str]:
    remat = config.train.gradient_checkpointing
    given = {"plain": remat.enabled_normal_steps, "gradnorm": remat.enabled_gradnorm_steps}
    return frozenset(name for name, on in given.items() if on is None and backend.recomputation_saves_memory())


def build_objective(
    config: Config, dataset: Dataset, resolved: ResolvedSchedule, model: ModelFamily, block: int
) -> Objective:
    """The loss of a configuration."""
    masking = bool(dataset.components) and (resolved.meta_masking.enabled or resolved.partial_masking.enabled)
    component_names = tuple(component.name for component in dataset.components)
    return Objective(
        model=model,
        tasks=dataset.tasks,
        bounds=tuple((component.start, component.stop) for component in dataset.components),
        seed=config.train.seed,
        criteria=build_criteria(config, dataset, "train"),
        class_weights=build_class_weights(config, dataset, "train"),
        null_possible=dataset.null_possible,
        null_masking=null_masking(config),
        augmentation=AugmentSettings.from_config(config.aug),
        block=split_block(model, config.train.tune),
        preprocessing=Preprocessing.from_config(config),
        mix=mix_settings(config, block),
        masking=MaskSettings.build(resolved.partial_masking, component_names) if masking else None,
        probabilities=build_probabilities(resolved),
        extras=PhaseExtras(
            subsets={"metadata": META_STATES} if masking else {},
            custom=custom.registered("train", config.metrics),
            kinds=tuple(dataset.subset_names),
        ),
    )


def build_step_settings(
    config: Config,
    dataset: Dataset,
    resolved: ResolvedSchedule,
    model: ModelFamily,
    parameters: tuple[ParameterInfo, ...],
    probes: Sequence[Probe],
    loaded: frozenset[str] | None = None,
    trained: frozenset[str] | None = None,
) -> StepSettings:
    """Optimizer, learning rates, clipping, moving average and GradNorm of a configuration."""
    train = config.train
    optimizer = optimizers.build_optimizer(
        config.optimizer,
        parameters,
        layer_index=model.layer_index if config.optimizer.layer_decay != 1 else None,
        checkpoint_shapes=None if loaded is None else {row.name: row.shape for row in parameters if row.name in loaded},
        stage_of=model.stage_of,
        trained=trained,
    )
    settings = StepSettings(
        probes=tuple(probes),
        optimizer=optimizer,
        learning_rates=build_scheduler(resolved),
        clip_mode=train.clip_mode,
        clip_limit=train.clip_grad,
        ema_decay=train.ema.decay if train.ema.enabled else None,
        gradnorm=None,
    )
    if not gradnorm_enabled(config):
        return settings
    gradnorm_settings = _gradnorm_settings(config, dataset, parameters, optimizer, model.stage_of, model.head_specs)
    return dataclasses.replace(settings, gradnorm=gradnorm_settings)


def build_evaluation(config: Config, dataset: Dataset, model: ModelFamily) -> EvaluationProgram:
    """What the phases of a validation compute."""
    return EvaluationProgram(
        model=model,
        block=split_block(model, config.train.tune),
        tasks=dataset.tasks,
        component_names=tuple(component.name for component in dataset.components),
        bounds=tuple((component.start, component.stop) for component in dataset.components),
        criteria=build_criteria(config, dataset, "val"),
        class_weights=build_class_weights(config, dataset, "val"),
        preprocessing=Preprocessing.from_config(config),
        null_possible=dataset.null_possible,
        extras=PhaseExtras(
            subsets={"taxa": dataset.taxa_subset_names, "rarity": dataset.rarity_names, **dataset.subset_names},
            ancestors=tuple(dataset.tree.anc[task] for task in dataset.tasks),
            confidence=True,
            custom=custom.registered("val", config.metrics),
            kinds=tuple(dataset.subset_names),
        ),
    )


def mix_settings(config: Config, block: int) -> mixing.MixSettings | None:
    """Mixing of the config; None where nothing is ever mixed."""
    return mixing.MixSettings.from_config(config.schedule.mixup, block) if mixes(config) else None


def _gradnorm_settings(
    config: Config,
    dataset: Dataset,
    parameters: tuple[ParameterInfo, ...],
    optimizer: optimizers.Optimizer,
    stage_of: Callable[[str], str],
    head_specs: Sequence[HeadSpec],
) -> gradnorm.GradNormSettings:
    weighting = config.loss.grad_weighting.task
    # Measured are the labelled samples alone; that is what trains where null labels never do.
    nulls_left_out = not dataset.null_possible or null_masking(config) == "always"
    zero_metadata = weighting.zero_aux_info and bool(dataset.components)
    refine = not weighting.use_linear_heads_for_gradnorm_reforward
    hierarchical = any(spec.parents for spec in head_specs)
    excluded = parse_filter(weighting.exclude_config, "loss.grad_weighting.task.exclude_config", stage_of=stage_of)
    shared = {
        parameter.path: row.optimizer != FROZEN and not excluded(parameter)
        for parameter, row in zip(parameters, optimizer.rows, strict=True)
    }
    if not any(shared.values()):
        raise InputError(
            "GradNorm has nothing to measure: every parameter is frozen by optimizer.parameter_groups or matched by "
            "loss.grad_weighting.task.exclude_config; set loss.grad_weighting.task.type to 'static', or leave a "
            "part of the trunk trainable and unmatched"
        )
    mask = jax.tree_util.tree_map_with_path(
        lambda path, _: shared[tuple(key.key for key in path)], optimizer.group_tree
    )
    return gradnorm.GradNormSettings(
        shared=mask,
        alpha=weighting.alpha,
        rule=weighting.gradnorm_rule,
        kappa=weighting.gradnorm_kappa,
        lr=weighting.gradnorm_lr,
        zero_metadata=zero_metadata,
        refine=refine,
        folded=not zero_metadata and nulls_left_out and (refine or not hierarchical),
    )
