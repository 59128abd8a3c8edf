"""What the server says of its model and of itself, each field beside the way it is found.

Annotations are evaluated here, since they hold functions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from linnaeus_jax import __version__
from linnaeus_jax.inference.answers import MIN_CONFIDENCE, TOP_K
from linnaeus_jax.inference.model import Model
from linnaeus_jax.inference.server.batching import Batcher
from linnaeus_jax.inference.server.requests import Limits

#: shares of answers that hold the truth, which the page offers
SET_COVERAGES = (0.8, 0.9, 0.95)


@dataclass(frozen=True)
class Known:
    """What there is to say something of.

    Attributes:
      name: of the model.
      fault: why no picture is answered; empty where they are.
    """

    name: str
    model: Model
    limits: Limits
    batcher: Batcher
    fault: str = ""

    @property
    def bundle(self) -> Any:
        """The `Bundle` of the model."""
        return self.model.bundle

    @property
    def tasks(self) -> list[str]:
        """Coarsest rank first."""
        return list(reversed(self.bundle.taxonomy.tasks))

    @property
    def set_coverages(self) -> list[float]:
        """Of `SET_COVERAGES` those that the model has thresholds for."""
        known, prior = self.bundle.calibration, self.model.answers.prior
        each = [share for share in SET_COVERAGES if f"{100 * share:.0f}" in {**known.coverage} and not prior]
        return [share for share in each if f"{100 * share:.0f}" in known.sets]

    def fact(self, key: str) -> str | None:
        """A fact of the bundle as text; None: not known."""
        return None if self.bundle.facts.get(key) is None else str(self.bundle.facts[key])


@dataclass(frozen=True)
class Found:
    """In the annotation of a field: how its value is found."""

    find: Callable[[Known], Any]


class Information(BaseModel):
    """An answer whose fields say how they are found."""

    model_config = ConfigDict(protected_namespaces=(), from_attributes=True)

    @classmethod
    def of(cls, known: Known) -> Self:
        ways = {name: field.metadata for name, field in cls.model_fields.items()}
        return cls(**{name: way.find(known) for name, found in ways.items() for way in found if isinstance(way, Found)})


class ComponentOut(BaseModel):
    """A metadata component: its columns, and what they are computed from (place, date, elevation)."""

    model_config = ConfigDict(from_attributes=True)

    name: str
    columns: list[str]
    inputs: list[str]


class LimitsOut(BaseModel):
    """What a request may hold."""

    model_config = ConfigDict(from_attributes=True)

    body_bytes: int
    pictures: int
    pixels: int
    seconds: float


class ModelInformation(Information):
    """Answer of `GET /info`; null where it is not known."""

    model_name: Annotated[str, Found(lambda it: it.name)]
    model_version: Annotated[
        str, Found(lambda it: it.fact("version") or f"step {it.fact('step') or it.fact('steps') or 'unknown'}")
    ]
    model_architecture: Annotated[
        str, Found(lambda it: " ".join(str(it.bundle.settings.get(key, "")) for key in ("type", "variant")).strip())
    ]
    taxonomy_source: Annotated[str | None, Found(lambda it: it.fact("taxonomy_source"))]
    taxonomy_version: Annotated[str | None, Found(lambda it: it.fact("taxonomy_version"))]
    taxonomy_root_identifier: Annotated[str | None, Found(lambda it: it.fact("taxonomy_root_identifier"))]
    predicted_rank_levels: Annotated[list[str], Found(lambda it: it.tasks), Field(description="coarsest first")]
    rank_names: Annotated[dict[str, str], Found(lambda it: {task: it.bundle.taxonomy.ranks[task] for task in it.tasks})]
    num_classes_per_rank: Annotated[
        dict[str, int], Found(lambda it: {task: len(it.bundle.taxonomy.classes[task]) for task in it.tasks})
    ]
    null_class_info: Annotated[
        dict[str, int | None],
        Found(lambda it: dict.fromkeys(it.tasks, 0 if it.bundle.taxonomy.first else None)),
        Field(description="index of the class that means unknown"),
    ]
    image_size: Annotated[
        list[int], Found(lambda it: [3, *it.bundle.preprocessing.size]), Field(description="channels, height, width")
    ]
    image_mean: Annotated[list[float], Found(lambda it: list(it.bundle.preprocessing.mean))]
    image_std: Annotated[list[float], Found(lambda it: list(it.bundle.preprocessing.std))]
    image_interpolation: Annotated[str, Found(lambda it: it.bundle.preprocessing.interpolation)]
    image_resize_mode: Annotated[str, Found(lambda it: it.bundle.preprocessing.resize_mode)]
    image_crop_fraction: Annotated[
        float,
        Found(lambda it: it.bundle.preprocessing.crop_fraction),
        Field(description="share of the shorter side that center_crop keeps"),
    ]
    metadata_components_enabled: Annotated[
        list[str], Found(lambda it: [component.name for component in it.bundle.encoder.components])
    ]
    metadata_feature_encoding: Annotated[
        list[ComponentOut],
        Found(lambda it: list(map(ComponentOut.model_validate, it.bundle.encoder.components))),
    ]
    aux_vector_length: Annotated[int, Found(lambda it: it.bundle.encoder.width)]
    default_top_k: Annotated[int, Found(lambda it: TOP_K)]
    default_min_confidence: Annotated[float, Found(lambda it: MIN_CONFIDENCE)]
    calibration_rows: Annotated[
        int,
        Found(lambda it: it.bundle.calibration.rows),
        Field(description="validation rows that the probabilities were calibrated on; 0: they are not"),
    ]
    coverage_rows: Annotated[
        int,
        Found(lambda it: it.bundle.calibration.coverage_rows),
        Field(description="validation rows that `coverage` was measured on; 0: it was not"),
    ]
    set_coverages: Annotated[
        list[float],
        Found(lambda it: it.set_coverages),
        Field(description="some coverages that sets of taxa can be asked for"),
    ]
    box_cut: Annotated[
        dict[str, Any],
        Found(lambda it: it.model.cut.to_json()),
        Field(description="how boxes are cut out of pictures, and from which `confidence` on"),
    ]
    licence: Annotated[str | None, Found(lambda it: it.fact("licence"))]
    inference_handler_version: Annotated[str, Found(lambda it: f"linnaeus_jax {__version__}")]
    artifacts_source_uri: Annotated[str | None, Found(lambda it: None)]
    limits: Annotated[LimitsOut, Found(lambda it: LimitsOut.model_validate(it.limits))]


class Health(Information):
    """Answer of `GET /health`."""

    status: Annotated[Literal["ok", "failed"], Found(lambda it: "failed" if it.fault else "ok")]
    reason: Annotated[str, Found(lambda it: it.fault)]  # why no picture is answered; empty where they are
    batch_sizes: Annotated[list[int], Found(lambda it: list(it.model.forward.buckets))]
    compilations: Annotated[int, Found(lambda it: it.batcher.compilations)]
    waiting_pictures: Annotated[int, Found(lambda it: it.batcher.waiting)]
