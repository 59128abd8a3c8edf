"""What the server takes and says of pictures, as pydantic types: the schema of its HTTP interface."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, SkipValidation, ValidationError

from linnaeus_jax.inference.answers import MIN_CONFIDENCE, TOP_K

#: numbers that the model takes
LARGEST = float(np.finfo(np.float32).max)
#: taxa in one list
MAX_TAXA = 10_000
#: boxes of a request
MAX_BOXES = 1000
#: errors that are told one by one, and characters of a key in them
TOLD_ERRORS, TOLD_KEY = 5, 100
#: errors that are made at all
MAX_ERRORS = 1000

# of a list only the first error is made: there may be as many as the body has bytes
TaxonText = Annotated[str, Field(max_length=200)]
TaxonList = Annotated[list[TaxonText | int], Field(fail_fast=True, max_length=MAX_TAXA)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Numbers = Annotated[list[Annotated[float, Field(ge=-LARGEST, le=LARGEST)]], Field(fail_fast=True)]


class Given(BaseModel):
    """A part of a request; keys that do not exist are refused."""

    model_config = ConfigDict(extra="forbid")


class ObservationIn(Given):
    """What is known of one picture besides its pixels."""

    latitude: Number | None = Field(None, description="degrees, -90 to 90")
    longitude: Number | None = Field(None, description="degrees, -180 to 180")
    date: str | None = Field(
        None, max_length=100, description="ISO 8601, e.g. 2024-05-17T10:20+02:00 or 2024-05; UTC without an offset"
    )
    elevation: Number | None = Field(None, description="metres above the sea")
    components: dict[str, Numbers] = Field(
        default_factory=dict,
        description="numbers of metadata components by name, for those not computed from the above",
    )


Observations = Annotated[list[ObservationIn], Field(fail_fast=True)]


class OptionsIn(Given):
    """What to report."""

    top_k: int = Field(TOP_K, ge=1, le=1000, description="taxa of every rank")
    min_confidence: float = Field(MIN_CONFIDENCE, ge=0, le=1, description="probability that the answer must reach")
    coverage: float | None = Field(
        None, ge=0, le=1, description="instead of min_confidence: share of answers that hold the truth, such as 0.9"
    )
    as_sets: bool = Field(
        False, description="with coverage: also the smallest set of taxa that holds the truth so often"
    )
    novelty: float | Literal["auto", "off"] = Field(
        "auto", description="say whether the taxon is a known one: share of false alarms, 0.01 to 0.5; auto: 0.05"
    )
    consistency: Literal["path", "documented"] = "path"
    class_balance: float = Field(0.0, ge=0, le=1, description="1: rare taxa are as likely beforehand as common ones")
    restrict: TaxonList | None = Field(None, description="taxon ids or scientific names; nothing else is reported")
    always_report: TaxonList = Field(default_factory=list, description="taxa that are reported whatever they get")


class PictureIn(Given):
    """A picture in JSON."""

    data: str = Field(description="the bytes of the file in base64, or a data: URI of them")
    name: str = Field("", max_length=1000, description="comes back in the answer; nothing is read from it")


Place = Annotated[
    tuple[float, float, float, float],
    Field(description="left, top, width and height, as shares of the upright picture"),
]


class BoxIn(BaseModel):
    """What a detector has found on a picture."""

    bbox: Place
    conf: float | None = Field(None, ge=0, le=1, description="of the detector")
    category: str = Field("", description="of MegaDetector, or a name")


class BoxesIn(Given):
    """Boxes of the pictures."""

    # `given_boxes` checks each of them, as in Python
    boxes: list[list[Annotated[BoxIn | Place, SkipValidation]]] | None = Field(
        None, description="a list for each picture, perhaps an empty one; a box may be its four numbers alone"
    )


class PicturesIn(ObservationIn, BoxesIn):
    """Pictures as application/json; `metadata` excludes the single values."""

    images: list[PictureIn | str] = Field(
        min_length=1, fail_fast=True, description="pictures, or their bytes in base64"
    )
    metadata: Observations | None = Field(None, description="one for each picture")


class AnswersIn(OptionsIn):
    """Which answers are wanted."""

    compare: bool = Field(False, description="also predict every picture without its metadata")
    together: bool = Field(False, description="one answer for all pictures, which show the same individual or group")


class PredictRequest(PicturesIn, AnswersIn):
    """Body of `POST /predict` as application/json; `metadata` excludes the single values."""


class PredictForm(ObservationIn, BoxesIn, AnswersIn):
    """Body of `POST /predict` as multipart/form-data, with files named `images`. `restrict` and `always_report` may be
    repeated, and hold several taxa between commas or on lines; `metadata`, `boxes` and `components` are JSON."""

    metadata: Observations | None = None


class VectorOptionsIn(Given):
    """Which vectors are wanted."""

    with_metadata: bool = Field(False, description="after place, date and elevation have joined")
    normalize: bool = Field(False, description="of length 1")


class EmbedRequest(PicturesIn, VectorOptionsIn):
    """Body of `POST /embed` as application/json; `metadata` excludes the single values."""


class EmbedForm(ObservationIn, BoxesIn, VectorOptionsIn):
    """Body of `POST /embed` as multipart/form-data, with files named `images`; `metadata`, `boxes` and `components` are
    JSON."""

    metadata: Observations | None = None


class TaxonOut(BaseModel):
    """A taxon and its probability; id 0 is unknown."""

    model_config = ConfigDict(from_attributes=True)

    rank: str
    taxon_id: int
    name: str
    common_name: str
    probability: float


class PredictionOut(BaseModel):
    """What is said of a picture.

    `path` is one taxon of every rank, coarsest first; `answer` the deepest of them that is probable enough, null where
    none is; `top` the most probable taxa of every rank; `inputs` the metadata that were used; `notes` what was given
    but not used, and why; `reason` why the answer ends above the finest rank, as a code, "" where it does not, and
    `reason_text` the same in words; `set` the taxa that hold the truth with the coverage asked for, and `set_size` how
    many taxa without any below them these are, where `as_sets` was asked for; where the server has a prior of places
    and dates, `without_prior` the answer without it, and `prior_text` in words what it changed; `novelty` whether it
    shows a known taxon, a new one below `novelty_taxon`, or nothing like the training pictures, where the model can say
    it.
    """

    model_config = ConfigDict(from_attributes=True)

    answer: TaxonOut | None
    path: list[TaxonOut]
    top: dict[str, list[TaxonOut]]
    always: list[TaxonOut]
    inputs: list[str]
    notes: list[str]
    reason: str
    reason_text: str
    set: list[TaxonOut] | None = None
    set_size: int | None = None
    without_prior: TaxonOut | None = None
    prior_text: str | None = None
    novelty: Literal["known", "new_below", "outside"] | None = None
    novelty_taxon: TaxonOut | None = None
    known_score: float | None = None
    outside_score: float | None = None


class BoxOut(BaseModel):
    """What of a picture was seen."""

    number: int = Field(description="among the boxes of the picture, from 1")
    confidence: float | None
    category: str
    bbox: list[float]


class BoxedOut(PredictionOut):
    """The prediction of what is in a box; where it was not looked at, `path` is empty and `reason` box_left_out."""

    without_metadata: PredictionOut | None = Field(None, description="where `compare` was asked for")
    box: BoxOut | None = Field(None, description="null: the whole picture")


class PictureOut(BoxedOut):
    """The prediction of one picture, with the name under which it was sent; where boxes were, that of the one with the
    largest product of its confidence and the probability of the path's finest taxon."""

    image: str
    boxes: list[BoxedOut | None] | None = Field(None, description="of every box, where boxes were sent")
    pictures: int | None = Field(None, description="how many were answered together, where that was asked for")


class PredictResponse(BaseModel):
    """Answer of `POST /predict`, in the order of the pictures."""

    model: str
    predictions: list[PictureOut]


class VectorOut(BaseModel):
    """The feature vector of one picture, or of what is in a box of it, with the name under which it was sent."""

    image: str
    box: BoxOut | None = Field(None, description="null: the whole picture")
    vector: list[float] | None = Field(description="null of a box that was not looked at")
    reason_text: str = Field("", description="why not")


class EmbedResponse(BaseModel):
    """Answer of `POST /embed`, in the order of the pictures and their boxes."""

    model: str
    layer: str = Field(description="trunk, or fused with metadata")
    vectors: list[VectorOut]


class Problem(BaseModel):
    """Why a request was not answered."""

    detail: str
    reason: str = Field("", description="not_finite where outputs of the model are not finite")
    predictions: list[PictureOut | None] | None = Field(
        None, description="where outputs of the model are not finite: the answers of the others, null for these"
    )
    vectors: list[VectorOut | None] | None = Field(None, description="the same of /embed")


def message_of(error: ValidationError) -> str:
    """The errors as one line; where they are very many, their number alone, since making them takes long."""
    count = error.error_count()
    if count > MAX_ERRORS:
        return f"{count} keys or values are not those of a request; /openapi.json says what it may hold"
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    parts = []
    for each in errors[:TOLD_ERRORS]:
        place = ".".join(str(part)[:TOLD_KEY] for part in each["loc"] if part not in ("str", "PictureIn"))
        parts.append(f"{place}: {each['msg']}" if place else each["msg"])
    more = f"; and {count - TOLD_ERRORS} more" if count > TOLD_ERRORS else ""
    return "; ".join(dict.fromkeys(parts)) + more
