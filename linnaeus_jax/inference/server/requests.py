"""From the body of a request to pictures, observations and options; nothing is ever read from a name or path in it."""

from __future__ import annotations

import base64
import binascii
import functools
import json
import re
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastapi import HTTPException
from pydantic import ValidationError
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference.answers import AnswerOptions
from linnaeus_jax.inference.forward import TRUNK
from linnaeus_jax.inference.model import Model
from linnaeus_jax.inference.pooling import Pooling
from linnaeus_jax.inference.server.schemas import (
    MAX_BOXES,
    MAX_TAXA,
    TOLD_KEY,
    EmbedForm,
    EmbedRequest,
    ObservationIn,
    PictureIn,
    PredictForm,
    PredictRequest,
    message_of,
)
from linnaeus_jax.reading.box_cuts import Box, seen_of
from linnaeus_jax.reading.boxes import given_boxes
from linnaeus_jax.reading.metadata import Encoded, Observation

# ---- multipart/form-data (RFC 7578) that is in memory as a whole: read at once by Starlette's parser, in any thread


#: files of a form, other fields, and bytes of one of those
MAX_PARTS = 1000
MAX_TEXT = 2**20


class FormError(ValueError):
    """A body that is no form, or too much of one; the message is the reason."""


class File(NamedTuple):
    """A file of a form."""

    name: str
    data: bytes


class _Parser(MultiPartParser):
    spool_max_size = sys.maxsize  # pictures that were sent are never written to a disk
    ended = False

    def on_end(self) -> None:
        self.ended = True


def read_form(content_type: str, body: bytes) -> list[tuple[str, str | File]]:
    """Names and values of a form in their order; text that is not UTF-8 is read as Latin-1.

    Raises:
      FormError: it is broken, ends early or has too many parts.
    """

    async def stream() -> AsyncGenerator[bytes]:
        yield body

    limits = {"max_files": MAX_PARTS, "max_fields": MAX_PARTS, "max_part_size": MAX_TEXT}
    parser = _Parser(Headers({"content-type": content_type}), stream(), **limits)
    try:
        parser.parse().send(None)  # everything is there, so that it ends without waiting for anything
    except StopIteration as parsed:
        parts = [(name, _read(value)) for name, value in parsed.value.multi_items()]
        if not parser.ended:
            raise FormError("it ends early") from None
        return parts
    except MultiPartException as error:
        raise FormError(str(error.__cause__ or error.message)) from error
    raise AssertionError("Starlette's parser waits, although the whole body is there")


def _read(value: str | UploadFile) -> str | File:
    if isinstance(value, str):
        return value
    with value.file:
        return File(value.filename or "", value.file.read())


# ----------------------------------------------------------------------------------------------------------------------


#: AnswerOptions of so many different requests are kept
KEPT_OPTIONS = 64
#: seconds after which a client may try again
RETRY_AFTER = 1
#: types of the body of a request, as JSON and as a form
PREDICT_BODY, EMBED_BODY = (PredictRequest, PredictForm), (EmbedRequest, EmbedForm)
AnyRequest = PredictRequest | PredictForm | EmbedRequest | EmbedForm
AnyBody = tuple[type[PredictRequest], type[PredictForm]] | tuple[type[EmbedRequest], type[EmbedForm]]
_LISTS = ("restrict", "always_report")
_JSON_FIELDS = ("metadata", "components", "boxes")


@dataclass(frozen=True)
class Limits:
    """What a server accepts.

    Attributes:
      body_bytes: of a request.
      pictures: of a request; each box that is taken counts as one.
      pixels: width times height of a picture, by its header.
      seconds: for a request, from its first byte to its answer.
      queue: requests that are read, decoded and computed at once; more are refused with 503.
      held_bytes: of the bodies of all these requests; more are refused with 503.
      connections: open at once; for one more the one that has waited longest is closed, or it is refused with 503.
      header_bytes: of the line, the headers and the trailers of a request.
      header_seconds: for them to come.
    """

    body_bytes: int = 20 * 2**20
    pictures: int = 32
    pixels: int = 64_000_000
    seconds: float = 30.0
    queue: int = 128
    held_bytes: int = 2**29
    connections: int = 512
    header_bytes: int = 2**15
    header_seconds: float = 10.0

    @property
    def values(self) -> int:
        """Numbers, texts, lists and objects that JSON in a request may hold; more than any request needs."""
        return 2 * MAX_TAXA + 1000 * (self.pictures + 1)


@dataclass(frozen=True)
class ParsedRequest:
    """What the body of a request asks for.

    Attributes:
      names: of the pictures, as the client calls them.
      data: functions that return the bytes of each, to be called where it is decoded.
      observations: one for each.
      request: the rest, of one of the types of its endpoint.
    """

    names: list[str]
    data: list[Callable[[], bytes]]
    observations: list[Observation]
    request: Any


@dataclass(frozen=True)
class VectorOptions:
    """Which vectors are wanted: `layer` is `forward.TRUNK` or `FUSED`."""

    layer: str
    normalize: bool


@dataclass(frozen=True, eq=False)
class TogetherOptions:
    """One answer by `options` is wanted for all pictures of a request."""

    options: AnswerOptions


@dataclass(frozen=True, eq=False)
class PreparedRequest:
    """A request that is ready for the model; the files `contents` of its pictures are still to be decoded.

    Attributes:
      seen: what is seen of each picture, see `seen_of`.
    """

    parsed: ParsedRequest
    seen: list[list[tuple[Box | None, str]]]
    encoded: Encoded
    options: AnswerOptions | VectorOptions | TogetherOptions
    contents: list[bytes]


def http_error(status: int, detail: str) -> HTTPException:
    """The error to raise for a request that cannot be answered."""
    return HTTPException(status, detail, {"Retry-After": str(RETRY_AFTER)} if status in (503, 504) else None)


def parse_request(content_type: str, body: bytes, limits: Limits, types: AnyBody = PREDICT_BODY) -> ParsedRequest:
    """Reads the body of a request.

    Args:
      types: of the body, as JSON and as a form.

    Raises:
      HTTPException: 400, 413, 415 or 422, with the reason.
    """
    kind = content_type.split(";")[0].strip().lower()
    try:
        if kind == "application/json":
            return _from_json(body, limits, types[0])
        if kind == "multipart/form-data":
            return _from_form(read_form(content_type, body), limits, types[1])
    except FormError as error:
        raise http_error(400, f"this is no multipart/form-data that can be read: {error}") from error
    except ValidationError as error:
        raise http_error(422, message_of(error)) from error
    raise http_error(
        415, f"a body of {kind or 'no content type'} is not read; send multipart/form-data or application/json"
    )


def _from_json(body: bytes, limits: Limits, kind: type[PredictRequest] | type[EmbedRequest]) -> ParsedRequest:
    _check_values("the body", body, limits)
    request = kind.model_validate_json(body)
    _check_count(len(request.images), limits)
    pictures = [PictureIn(data=each, name="") if isinstance(each, str) else each for each in request.images]
    return ParsedRequest(
        [picture.name for picture in pictures],
        [functools.partial(_decode_base64, picture.data) for picture in pictures],
        _observations(request, len(pictures)),
        request,
    )


def _decode_base64(text: str) -> bytes:
    """Raises ValueError for anything else."""
    try:
        return base64.b64decode(re.sub(r"\Adata:[^,]{0,200};base64,", "", text), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("the text is not base64; send the bytes of the file in base64") from error


def _from_form(
    parts: list[tuple[str, str | File]], limits: Limits, kind: type[PredictForm] | type[EmbedForm]
) -> ParsedRequest:
    files = [part for name, part in parts if name == "images" and isinstance(part, File)]
    if len(files) < sum(name == "images" for name, _ in parts):
        raise http_error(422, "images must be files with a file name; a path or text is not read")
    if not files:
        raise http_error(422, "the form holds no file named images")
    _check_count(len(files), limits)
    texts: dict[str, list[str]] = {}
    for name, part in parts:
        if name != "images" and isinstance(part, File):
            raise http_error(422, f"{name} must be text; files are named images")
        if isinstance(part, str) and part.strip():
            texts.setdefault(name, []).append(part)
    request = kind.model_validate({name: _field(name, values, limits) for name, values in texts.items()})
    return ParsedRequest(
        [file.name for file in files],
        [functools.partial(bytes, file.data) for file in files],
        _observations(request, len(files)),
        request,
    )


def _field(name: str, texts: list[str], limits: Limits) -> Any:
    """The value of a field that is given one or more times."""
    if name in _LISTS:
        if sum(text.count(",") + text.count("\n") for text in texts) > 2 * MAX_TAXA:  # some may be empty
            raise http_error(422, f"{name} holds more than {MAX_TAXA} taxa")
        parts = [part.strip() for text in texts for part in re.split(r"[,\n]", text)]
        return [part for part in parts if part]
    if len(texts) > 1:
        raise http_error(422, f"{name[:TOLD_KEY]} is given {len(texts)} times; give it once")
    return _json_field(name, texts[0], limits) if name in _JSON_FIELDS else texts[0]


def _json_field(name: str, text: str, limits: Limits) -> Any:
    _check_values(name, text.encode(), limits)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise http_error(422, f"{name} is no JSON: {error}") from error


def _check_values(name: str, text: bytes, limits: Limits) -> None:
    """Before JSON is read, since a list in memory takes a hundred times its bytes; commas within texts count, too."""
    if sum(map(text.count, (b",", b"[", b"{"))) > limits.values:
        raise http_error(413, f"{name} holds more than {limits.values} values; send fewer in one request")


def _check_count(count: int, limits: Limits) -> None:
    if count > limits.pictures:
        raise http_error(413, f"{count} pictures in one request; send at most {limits.pictures}")


def _given(request: AnyRequest, count: int) -> Sequence[Sequence[Any]]:
    """The boxes of every picture as they were sent."""
    boxes = request.boxes or [[]] * count
    if len(boxes) != count:
        raise http_error(422, f"boxes holds lists of {len(boxes)} pictures for {count} pictures")
    if (total := sum(map(len, boxes))) > MAX_BOXES:
        raise http_error(413, f"{total} boxes in one request; send at most {MAX_BOXES}")
    return boxes


def _observations(request: AnyRequest, count: int) -> list[Observation]:
    single = {name: getattr(request, name) for name in ObservationIn.model_fields}
    if request.metadata is None:
        return [Observation(**single)] * count
    given = [name for name, value in single.items() if value not in (None, {})]
    if given:
        raise http_error(422, f"metadata and {', '.join(given)} exclude each other; give one or the other")
    if len(request.metadata) != count:
        raise http_error(422, f"metadata holds {len(request.metadata)} observations for {count} pictures")
    return [Observation(**{name: getattr(each, name) for name in single}) for each in request.metadata]


# ---- what is computed from it, in threads


class Preparation:
    """Files, metadata and options of requests, for one model."""

    def __init__(self, model: Model, limits: Limits) -> None:
        self._model, self._limits = model, limits
        self._options = functools.lru_cache(KEPT_OPTIONS)(model.answers.options)
        self._vectors = functools.lru_cache(KEPT_OPTIONS)(VectorOptions)
        self._pooling = Pooling(model.answers)

    def _contents(self, parsed: ParsedRequest) -> list[bytes]:
        """The bytes of the files. Raises HTTPException 422 for what is no base64."""
        contents = []
        for number, data in enumerate(parsed.data):
            try:
                contents.append(data())
            except ValueError as error:
                raise http_error(422, f"{called(parsed, number)}: {error}") from error
            if not contents[-1]:
                raise http_error(422, f"{called(parsed, number)}: empty file")
        return contents

    def prepare(self, content_type: str, body: bytes, types: AnyBody = PREDICT_BODY) -> PreparedRequest:
        """Everything of a request but the pixels of its pictures.

        Raises:
          HTTPException: see `parse_request`; 422 for components or taxa that the model does not have.
        """
        parsed = parse_request(content_type, body, self._limits, types)
        seen = self._seen(parsed)
        try:
            options = self._options_of(parsed.request)
            encoded = self._encoded(parsed)
            if isinstance(options, VectorOptions) and options.layer == TRUNK:
                encoded = encoded.without()
        except (UserError, ValueError) as error:
            raise http_error(422, str(error)) from error
        return PreparedRequest(parsed, seen, encoded, options, self._contents(parsed))

    def _seen(self, parsed: ParsedRequest) -> list[list[tuple[Box | None, str]]]:
        cut, seen = self._model.cut, []
        for number, given in enumerate(_given(parsed.request, len(parsed.names))):
            try:
                seen.append(seen_of(given_boxes(given, cut), cut))
            except UserError as error:
                raise http_error(422, f"{called(parsed, number)}: {error}") from error
        if (rows := sum(not why for each in seen for _, why in each)) > self._limits.pictures:
            raise http_error(
                413, f"{rows} boxes and whole pictures in one request; send at most {self._limits.pictures}"
            )
        return seen

    def _options_of(self, request: AnyRequest) -> AnswerOptions | VectorOptions | TogetherOptions:
        """The same object for equal requests, which are then answered together."""
        if isinstance(request, EmbedRequest | EmbedForm):
            return self._vectors(self._model.layer(request.with_metadata), request.normalize)
        options = self._options(
            top_k=request.top_k,
            min_confidence=request.min_confidence,
            consistency=request.consistency,
            restrict=None if request.restrict is None else tuple(request.restrict),
            always_report=tuple(request.always_report),
            coverage=request.coverage,
            class_balance=request.class_balance,
            as_sets=request.as_sets,
            novelty=request.novelty,
        )
        if not request.together:
            return options
        self._pooling.check(options)
        return TogetherOptions(options)

    def _encoded(self, parsed: ParsedRequest) -> Encoded:
        encode = self._model.bundle.encoder.encode
        if parsed.request.metadata is not None:
            return encode(parsed.observations)
        return encode(parsed.observations[:1]).take([0] * len(parsed.observations))  # the same for all pictures


def called(parsed: ParsedRequest, number: int, box: Box | None = None) -> str:
    """What a picture, or a box of it, is called in messages."""
    name = f"picture {number}" + (f" ({parsed.names[number][:100]})" if parsed.names[number] else "")
    return name if box is None else f"{name}, box {box.number}"
