"""The HTTP server: predictions of pictures that clients send, facts about the model, and a page for people."""

from __future__ import annotations

import asyncio
import copy
import faulthandler
import functools
import itertools
import math
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import orjson
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from numpy.typing import NDArray
from pydantic.json_schema import models_json_schema
from starlette.middleware.cors import CORSMiddleware

from linnaeus_jax import __version__
from linnaeus_jax.inference import reasons
from linnaeus_jax.inference.answers import AnswerOptions
from linnaeus_jax.inference.files.prediction_lines import JsonLines
from linnaeus_jax.inference.forward import FUSED, every_layer
from linnaeus_jax.inference.model import Model, unit
from linnaeus_jax.inference.paths import NOT_FINITE, Logits
from linnaeus_jax.inference.pooling import Pooling, united
from linnaeus_jax.inference.server.access import HEALTH, Access
from linnaeus_jax.inference.server.batching import WAIT, Batcher, BatcherClosed
from linnaeus_jax.inference.server.connections import ENFORCE_EVERY, Connection, connections_with, limit_logs
from linnaeus_jax.inference.server.decoders import SECONDS, Decoders, Undecoded
from linnaeus_jax.inference.server.guard import EMBED, PREDICT, Guard, ServerMetrics
from linnaeus_jax.inference.server.information import Health, Known, ModelInformation
from linnaeus_jax.inference.server.requests import (
    EMBED_BODY,
    PREDICT_BODY,
    RETRY_AFTER,
    AnyBody,
    Limits,
    ParsedRequest,
    Preparation,
    PreparedRequest,
    TogetherOptions,
    VectorOptions,
    called,
    http_error,
)
from linnaeus_jax.inference.server.rows import Row, of_pictures, of_rows
from linnaeus_jax.inference.server.schemas import (
    TOLD_ERRORS,
    EmbedResponse,
    PredictResponse,
    Problem,
)
from linnaeus_jax.reading.box_cuts import box_object
from linnaeus_jax.reading.metadata import Encoded, Observation
from linnaeus_jax.system import usable_cores

PAGE = Path(__file__).parent / "page"
#: path -> file of the page, its kind
PAGE_FILES = {
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
#: seconds that an idle connection stays open: longer than the 60 s of common proxies, which reuse it until then
KEEP_ALIVE = 75
#: seconds that the end may take after the last request was answered or given up; then the process ends itself
ENDING = 10
WORLD_MARK = "<!-- world.svg -->"
#: batch sizes of a server: closer to each other than for folders, since few pictures come at once
SERVER_BUCKETS = (1, 4, 8, 16, 32, 64)
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "a body that is broken, or a host name that is not the server's"},
    401: {"model": Problem, "description": "the token is missing or wrong, where the server wants one"},
    403: {"model": Problem, "description": "sent by a page of another site"},
    408: {"model": Problem, "description": "the body did not come in time"},
    413: {"model": Problem, "description": "too many bytes, pictures or pixels"},
    415: {"model": Problem, "description": "a body or a file of a kind that is not read"},
    422: {
        "model": Problem,
        "description": "a damaged picture, values that cannot be, or outputs of the model that are not finite: then "
        "`predictions` holds the answers of the other pictures",
    },
    503: {"model": Problem, "description": "too many requests at once; see Retry-After"},
    504: {"model": Problem, "description": "no answer in time; see Retry-After"},
}


class Service:
    """One model behind HTTP: what the endpoints do.

    Attributes:
      batcher: started and closed with the application.
    """

    def __init__(self, model: Model, limits: Limits, wait: float, decoders: int) -> None:
        self.model, self.limits = copy.copy(model), limits
        self.model.forward = model.giving(*every_layer(model.bundle), logits=True)
        self._lines = JsonLines(model.bundle.taxonomy, AnswerOptions())
        self._pooling = Pooling(model.answers)
        self.batcher = Batcher(self.model, self._said, wait)
        self.metrics = ServerMetrics(self.batcher)
        self._preparation = Preparation(model, limits)
        self._threads = ThreadPoolExecutor(usable_cores(), thread_name_prefix="request")
        seconds = min(SECONDS, limits.seconds / 2)  # the rest of the request has its time, too
        self._decoders = Decoders(
            model.bundle.preprocessing, limits.pixels, seconds, decoders or usable_cores(), model.cut
        )

    @asynccontextmanager
    async def running(self, app: FastAPI) -> AsyncIterator[None]:
        """Around the life of the application: compiles before the first request, answers what is queued at the end."""
        self._decoders.start()
        try:
            await asyncio.to_thread(self.batcher.start)
            yield
            await asyncio.to_thread(self.batcher.close)
        finally:
            await asyncio.to_thread(self._decoders.close)
            await asyncio.to_thread(self._threads.shutdown)

    async def predict(self, request: Request) -> Response:
        parsed, rows, said = await self._said_of(request, PREDICT_BODY)
        seen = [row for row in rows if row.pixels is not None]
        if parsed.request.together and seen:
            run = asyncio.get_running_loop().run_in_executor
            one = await run(self._threads, self._together, parsed, seen, said)
            left = of_rows([row for row in rows if row.pixels is None], [])
            pictures = [one if one is None or parsed.request.boxes is None else {**one, "boxes": left}]
        else:
            alone = said[len(seen) :] or [None] * len(seen)
            each = [one and {"without_metadata": other, **one} for other, one in zip(alone, said)]
            if parsed.request.boxes is None:
                pictures = [one and {"image": name, **one} for name, one in zip(parsed.names, each)]
            else:
                pictures = of_pictures(rows, of_rows(rows, each), parsed.names)
                pictures = pictures[:1] if parsed.request.together else pictures
        return self._answered(parsed, rows, said, {"model": self.name, "predictions": pictures})

    def _together(self, parsed: ParsedRequest, seen: Sequence[Row], said: list[Any]) -> dict[str, Any] | None:
        """The answer of all rows that have one, by what `_said` gave; None where none has."""
        count = len(seen)
        kept = [place for place in range(count) if None not in said[place::count]]
        if not kept:
            return None
        picture = seen[kept[0]].picture
        rows = [[said[start + place] for place in kept] for start in range(0, len(said), count)]
        evidence, own = (np.stack([each[0] for each in of]) for of in (rows[0], rows[-1]))  # of the pixels: the last

        def answer(of: list[Any], found: NDArray[np.float64]) -> dict[str, Any]:
            sums = np.stack([own, found - own], axis=1).sum(axis=0)[None]
            pooled = self._pooling.pooled(sums, np.array([len(kept)]))
            first = [Observation() if of is rows[-1] and len(rows) > 1 else parsed.observations[picture]]
            answered = self.model.answers.answered(self.model.answers.located(pooled, first), of[0][3])
            inputs, notes = (united([0] * len(of), [each[at] for each in of])[0] for at in (1, 2))
            return self._lines.objects(answered, of[0][3], [inputs], [notes])[0]

        alone = answer(rows[-1], own) if parsed.request.compare else None
        return {
            "image": parsed.names[picture],
            "without_metadata": alone,
            "pictures": len(kept),
            **answer(rows[0], evidence),
        }

    async def embed(self, request: Request) -> Response:
        parsed, rows, said = await self._said_of(request, EMBED_BODY)
        each, vectors = iter(said), list[dict[str, Any] | None]()
        for row in rows:
            about = {"image": parsed.names[row.picture], "box": box_object(row.box), "reason_text": row.why}
            vector = None if row.pixels is None else next(each)
            vectors.append(None if vector is None and not row.why else {**about, "vector": vector})
        layer = self.model.layer(parsed.request.with_metadata)
        return self._answered(parsed, rows, said, {"model": self.name, "layer": layer, "vectors": vectors})

    @staticmethod
    def _answered(parsed: ParsedRequest, rows: Sequence[Row], said: list[Any], answer: dict[str, Any]) -> Response:
        """The answer; with status 422 where the model's outputs are not finite."""
        seen = [row for row in rows if row.pixels is not None]
        if bad := sorted({place % len(seen) for place, each in enumerate(said) if each is None}):
            answer["reason"] = reasons.NOT_FINITE
            names = [called(parsed, row.picture, row.box) for row in [seen[place] for place in bad[:TOLD_ERRORS]]]
            answer["detail"] = f"{', '.join(names)}: {NOT_FINITE}"
        content = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(content, 422 if bad else 200, media_type="application/json")

    def _said(
        self,
        logits: Logits,
        options: AnswerOptions | VectorOptions | TogetherOptions,
        inputs: Sequence[tuple[str, ...]],
        notes: Sequence[tuple[str, ...]],
    ) -> list[Any]:
        """`PredictionOut` as JSON types, since its pydantic type takes longer than the rest; or float32 vectors [D]; or
        of pictures that are answered together evidence [P], inputs, notes and options."""
        if isinstance(options, VectorOptions):
            vectors = logits[options.layer if options.layer in logits else FUSED]
            return list(unit(vectors) if options.normalize else vectors)
        if isinstance(options, TogetherOptions):
            return list(zip(self._pooling.terms(logits)[:, 0], inputs, notes, itertools.repeat(options.options)))
        return self._lines.objects(self.model.answers.answered(logits, options), options, inputs, notes)

    async def _said_of(self, request: Request, types: AnyBody) -> tuple[ParsedRequest, list[Row], list[Any]]:
        """What is asked, the rows of all pictures, and what is said of those with pixels and their metadata, None where
        the model's outputs are not finite; then, where `compare` is asked for, of the pixels alone."""
        content_type, body = request.headers.get("content-type", ""), await request.body()
        prepare = functools.partial(self._preparation.prepare, content_type, body, types)
        with self.batcher.expect_request():
            prepared = await asyncio.get_running_loop().run_in_executor(self._threads, prepare)
            parsed = prepared.parsed
            reading = [asyncio.ensure_future(self._rows(prepared, number)) for number in range(len(parsed.names))]
            try:
                rows = list(itertools.chain.from_iterable(await asyncio.gather(*reading)))
            finally:
                for each in reading:
                    each.cancel()
            seen = [row for row in rows if row.pixels is not None]
            if not seen:
                return parsed, rows, []
            pixels = np.stack([row.pixels for row in seen if row.pixels is not None])
            encoded = prepared.encoded.take([row.picture for row in seen])
            encoded = replace(encoded, notes=[(*row.notes, *own) for row, own in zip(seen, encoded.notes)])
            together = isinstance(prepared.options, TogetherOptions) and self._pooling.needs_alone(encoded)
            if together or getattr(parsed.request, "compare", False):
                encoded, pixels = Encoded.joined([encoded, encoded.without()]), np.concatenate([pixels, pixels])
            try:
                computed = self.batcher.submit(pixels, encoded, prepared.options)
            except BatcherClosed as error:
                raise http_error(503, str(error)) from error
        return parsed, rows, await asyncio.wrap_future(computed)

    async def _rows(self, prepared: PreparedRequest, number: int) -> list[Row]:
        """A picture, or its boxes. Raises HTTPException with the reason where it has no pixels."""
        seen = prepared.seen[number]
        taken = [box for box, why in seen if box is not None and not why]
        try:
            read = iter(await self._decoders.read(prepared.contents[number], taken))
        except Undecoded as error:
            raise http_error(error.status, f"{called(prepared.parsed, number)}: {error}") from error
        return [Row(number, box, None, why) if why else Row(number, box, *next(read)) for box, why in seen]

    @property
    def name(self) -> str:
        return str(self.model.bundle.facts.get("title", "")) or self.model.bundle.source.name

    def info(self) -> ModelInformation:
        return ModelInformation.of(Known(self.name, self.model, self.limits, self.batcher))

    async def health(self, response: Response) -> Health:
        fault = "" if self.batcher.alive else "the threads of the model have ended; the log of the server says why"
        fault = fault or await self._decoders.fault()
        response.status_code = 503 if fault else 200
        return Health.of(Known(self.name, self.model, self.limits, self.batcher, fault))


def create_app(
    model: Model,
    limits: Limits | None = None,
    *,
    access: Access | None = None,
    wait: float = WAIT,
    decoders: int = 0,
) -> FastAPI:
    """The application; `app.state.service` is its `Service`.

    Args:
      limits: of requests; default: `Limits()`.
      access: who may ask; default: `Access()`, everybody who calls this machine by a name of itself.
      wait: seconds that a picture waits for others that are known to come.
      decoders: processes that decode pictures; 0: as many as there are cores.
    """
    limits, access = limits or Limits(), access or Access()
    service = Service(model, limits, wait, decoders)
    app = FastAPI(
        title=f"linnaeus_jax: {service.name}",
        version=__version__,
        lifespan=service.running,
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
    )
    app.state.service = service

    @app.post(PREDICT, response_model=PredictResponse, responses=_PROBLEMS, openapi_extra=_request_body(PREDICT_BODY))
    async def predict(request: Request) -> Response:
        """Predicts pictures, sent as files of a form or in base64 as JSON."""
        return await service.predict(request)

    @app.post(EMBED, response_model=EmbedResponse, responses=_PROBLEMS, openapi_extra=_request_body(EMBED_BODY))
    async def embed(request: Request) -> Response:
        """Feature vectors of pictures, sent in the same way."""
        return await service.embed(request)

    @app.get("/info", response_model=ModelInformation)
    async def info() -> ModelInformation:
        """What the model is, what it takes and what it knows."""
        return service.info()

    @app.get(HEALTH, response_model=Health, responses={503: {"model": Health}})
    async def health(response: Response) -> Health:
        """Whether predictions are made; 503 where they are not."""
        return await service.health(response)

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Counts and times in the text format of Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        return JSONResponse({"detail": "the server failed; its log says why"}, 500)

    _add_page(app)
    setattr(app, "openapi", _openapi_of(app))  # noqa: B010  as FastAPI documents it; mypy refuses the assignment
    app.add_middleware(
        Guard,
        limits=limits,
        metrics=service.metrics,
        paths=(PREDICT, EMBED, "/", "/info", HEALTH, "/metrics", "/openapi.json", *PAGE_FILES),
        access=access,
    )
    if access.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=sorted(access.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
    return app


def _add_page(app: FastAPI) -> None:
    """Adds the page and its files, which are read once."""
    page, world = ((PAGE / name).read_text(encoding="utf-8") for name in ("index.html", "world.svg"))
    html = page.replace(WORLD_MARK, world)
    contents = {"/": (html, "text/html")}
    contents |= {path: ((PAGE / name).read_text(encoding="utf-8"), kind) for path, (name, kind) in PAGE_FILES.items()}

    def endpoint(text: str, kind: str) -> Callable[[], Any]:
        async def page() -> Response:
            return Response(text, media_type=f"{kind}; charset=utf-8", headers={"Cache-Control": "no-cache"})

        return page

    for path, (text, kind) in contents.items():
        app.add_api_route(path, endpoint(text, kind), include_in_schema=False)


def _request_body(types: AnyBody) -> dict[str, Any]:
    """What OpenAPI says of the body of a request, which is read by `requests`."""
    as_json, as_form = ({"$ref": f"#/components/schemas/{kind.__name__}"} for kind in types)
    form = {
        "allOf": [
            as_form,
            {
                "type": "object",
                "required": ["images"],
                "properties": {"images": {"type": "array", "items": {"type": "string", "format": "binary"}}},
            },
        ]
    }
    kinds = {"multipart/form-data": form, "application/json": as_json}
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind, schema in kinds.items()}}}


def _openapi_of(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """The description of the interface with the types of the bodies, made at its first use."""

    def openapi() -> dict[str, Any]:
        if not app.openapi_schema:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            _, bodies = models_json_schema(
                [(kind, "validation") for kind in (*PREDICT_BODY, *EMBED_BODY)],
                ref_template="#/components/schemas/{model}",
            )
            schema["components"]["schemas"] |= bodies["$defs"]
            app.openapi_schema = schema
        return app.openapi_schema

    return openapi


class _Server(uvicorn.Server):
    """Calls back once it listens, and ends connections that wait too long; once it is told to end, the process ends in
    time, whatever hangs.

    Python waits at its end for threads, and a thread that computes cannot be ended. So the end is left to a timer that
    needs no part of Python: it says where every thread is, and exits with status 1.
    """

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def on_tick(self, counter: int) -> bool:
        """Called every 0.1 s."""
        if counter % round(10 * ENFORCE_EVERY) == 0:
            for connection in [each for each in self.server_state.connections if isinstance(each, Connection)]:
                connection.enforce_timeouts()
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called for SIGTERM and SIGINT."""
        faulthandler.dump_traceback_later((self.config.timeout_graceful_shutdown or 0) + ENDING, exit=True)
        super().handle_exit(sig, frame)


def server_of(app: FastAPI, ready: Callable[[], None] = lambda: None) -> uvicorn.Server:
    """What serves the application with `run(sockets=[...])`; `ready` is called once requests are answered."""
    limit_logs()
    limits: Limits = app.state.service.limits
    config = uvicorn.Config(
        app,
        http=connections_with(limits),
        log_config=None,
        log_level="error",  # else whoever sends what is no HTTP writes a line into the log
        access_log=False,
        server_header=False,
        ws="none",
        timeout_keep_alive=KEEP_ALIVE,
        lifespan="on",
        timeout_graceful_shutdown=math.ceil(limits.seconds) + RETRY_AFTER,
    )
    return _Server(config, ready)


def serve(app: FastAPI, listener: socket.socket, ready: Callable[[], None] = lambda: None) -> None:
    """Serves until SIGTERM or SIGINT; requests that have come are answered before it returns. What is not answered when
    its time is over, and `ENDING` after that, is given up.

    Args:
      listener: a bound socket.
      ready: called once requests are answered.
    """
    # uvicorn raises the signal once more when it has stopped; that is no error
    previous = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server_of(app, ready).run(sockets=[listener])
    finally:
        faulthandler.cancel_dump_traceback_later()
        for number, handler in previous.items():
            signal.signal(number, handler)
