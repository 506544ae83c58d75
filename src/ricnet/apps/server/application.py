"""A served model: the routes that programs and the page ask, and the process that answers them until it is stopped."""

import asyncio
import contextlib
import logging
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from ricnet.apps.server import responses
from ricnet.apps.server.batching import Batcher, Question
from ricnet.apps.server.connections import BACKLOG, most_connections, server
from ricnet.apps.server.decoding import Decoders
from ricnet.apps.server.docs import docs_html
from ricnet.apps.server.guard import Guard, problem
from ricnet.apps.server.hosts import Hosts
from ricnet.apps.server.limits import Limits, Refusal
from ricnet.apps.server.requests import Ask, Asked, File, Options, parse, read_json, require_images
from ricnet.core.trajectory import Trajectory
from ricnet.errors import RicnetError, in_python, require
from ricnet.io import short
from ricnet.models.classifier import Classifier
from ricnet.version import __version__

PAGE = Path(__file__).parent / "page"
MAX_FIELDS = 8
"""Maximum fields of a form beside its files; Options has six."""
GRACE_SECONDS = 30
"""Time at shutdown for requests that have arrived to be answered."""
FORM = {
    "type": "object",
    "description": "One or many image files, and how to refine them.",
    "properties": {
        "images": {
            "type": "array",
            "items": {"type": "string", "format": "binary"},
            "description": "Image files, one field for each: PNG, JPEG, WebP, GIF, BMP, TIFF or PPM.",
        },
        **Options.model_json_schema()["properties"],
    },
    "required": ["images"],
}
BODY = {"multipart/form-data": {"schema": FORM}, "application/json": {"schema": Ask.model_json_schema()}}
REFUSALS: dict[int | str, dict[str, Any]] = {
    code: {"model": responses.Problem, "description": words}
    for code, words in {
        413: "Too much at once: the body, the pixels of an image or of all, their number, or the time to decode one.",
        415: "Neither a form nor JSON.",
        421: "The Host header has a name that this server does not answer for.",
        422: "It cannot be read, or is not what the model reads.",
        429: "Too many requests are under way; try again in a moment.",
        503: "The server is shutting down.",
    }.items()
}


def build(classifier: Classifier, name: str, limits: Limits | None = None, hosts: Hosts | None = None) -> FastAPI:
    """The application for one model. The model is run once before the first request, since its first run is slow."""
    limits = limits or Limits()
    # At most half of the connections may wait for an answer, so that new clients can connect.
    limits = replace(limits, max_waiting=min(limits.max_waiting, most_connections() // 2))
    limits = limits.of_input(classifier.input_shape)
    classifier = classifier.recorded()
    classifier.refine(torch.zeros(1, *classifier.input_shape, dtype=classifier.input_dtype))
    batcher = Batcher(classifier, limits.max_batch)
    decoders = Decoders(classifier.input_shape, limits)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(batcher.close, float(GRACE_SECONDS))
        decoders.close()

    app = FastAPI(
        title=f"ricnet: {name}",
        version=__version__,
        description="A classifier that refines its belief step by step and stops by itself.",
        docs_url=None,  # FastAPI's own pages load their scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.add_middleware(Guard, limits=limits, hosts=hosts or Hosts())
    app.add_exception_handler(HTTPException, _explain)
    _add_predict(app, classifier, batcher, decoders, limits)
    model = responses.describe(classifier, name, limits)
    _add_facts(app, classifier, batcher, model)
    _add_pages(app, model)
    return app


def _add_predict(app: FastAPI, classifier: Classifier, batcher: Batcher, decoders: Decoders, limits: Limits) -> None:
    @app.post(
        "/v1/predict",
        responses={200: {"model": responses.Answers}, **REFUSALS},
        openapi_extra={"requestBody": {"required": True, "content": BODY}},
    )
    async def predict(request: Request) -> Response:
        """Classify images or rows; each is refined until the model expects nothing more to gain."""
        body = await _read_body(request, limits)
        if isinstance(body, bytes):
            read, options = await decoders.run(read_json, body, classifier, limits)
        else:
            read, options = body
            require_images(len(read), classifier, limits)
        answering, notes = _answering(classifier, options)  # bad options are refused before anything is decoded
        asked = read if isinstance(read, Asked) else await decoders.decode(read, partial(_require_client, request))
        asked = asked._replace(notes=(*asked.notes, *notes))
        deadline = None if options.max_ms is None else request.state.arrived + options.max_ms / 1000
        # max_steps equal to the horizon changes nothing; without it, more requests can be batched.
        max_steps = None if options.max_steps == responses.horizon(answering or classifier) else options.max_steps
        question = Question(asked.inputs, max_steps, options.trace, deadline, answering)
        believed: list[float] = []
        question.answer.add_done_callback(lambda _: believed.append(time.perf_counter()))
        path = await asyncio.wrap_future(batcher.ask(question))
        if options.trace:  # of many inputs, steps and classes this takes long enough to keep others waiting
            return await asyncio.to_thread(_respond, path, asked, classifier, options)
        response = _respond(path, asked, classifier, options)
        batcher.delivered(time.perf_counter() - believed[0])
        return response


def _answering(classifier: Classifier, options: Options) -> tuple[Classifier | None, list[str]]:
    """The model with the request's own budget (None: as it is), and notes about it. Its steps are not recorded as CUDA
    graphs, which would hold memory for every budget requested."""
    most = responses.most_steps(classifier)
    if options.max_steps is not None and options.max_steps > most:
        raise Refusal(422, f"max_steps is {short(str(options.max_steps), 20)}; this server makes at most {most}.")
    if options.budget is None:
        return None, []
    try:
        frugal, told = classifier.within(options.budget)
    except RicnetError as error:
        raise Refusal(422, in_python(error.sentence)) from None
    return replace(frugal, recordings=None), [] if told is None else [f"{told}."]


async def _require_client(request: Request) -> None:
    if await request.is_disconnected():
        raise ClientDisconnect


async def _read_body(request: Request, limits: Limits) -> bytes | tuple[list[File], Options]:
    """A body of JSON as it is; a form as its files and its other fields."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        return await request.body()
    if kind != "multipart/form-data":
        raise Refusal(415, "send images as multipart/form-data, or JSON as application/json.")
    try:
        async with request.form(max_files=limits.max_batch, max_fields=MAX_FIELDS) as form:
            parts = form.multi_items()
            files = [File(x.filename or "", await x.read()) for _, x in parts if isinstance(x, UploadFile)]
            return files, parse(Options, {key: x for key, x in parts if isinstance(x, str)})
    except HTTPException as error:
        if "Too many files" in error.detail:
            raise Refusal(413, f"send at most {limits.max_batch} images at once.") from None
        raise Refusal(422, f"the form cannot be read: {error.detail}") from None


def _respond(path: Trajectory, asked: Asked, classifier: Classifier, options: Options) -> Response:
    said = responses.answers(
        path, asked.names, classifier.class_names, options.top, options.trace, options.abstain_below
    )
    return JSONResponse({"predictions": said, "notes": asked.notes})


def _add_facts(app: FastAPI, classifier: Classifier, batcher: Batcher, model: dict[str, Any]) -> None:
    examples = responses.samples(classifier)
    pictures = {str(place): sample.png for place, sample in enumerate(examples)}

    @app.get("/v1/model", responses={200: {"model": responses.Model}})
    async def about() -> Response:
        """What the model reads, knows and is worth, and the limits of this server."""
        return JSONResponse(model)

    @app.get("/v1/examples", responses={200: {"model": list[responses.Example]}})
    async def list_examples() -> Response:
        """A few test examples that came with the model."""
        return JSONResponse([sample.entry for sample in examples])

    @app.get("/v1/examples/{place}.png", include_in_schema=False)
    async def show_example(place: str) -> Response:
        png = pictures.get(place)
        if png is None:
            raise Refusal(404, f"there is no example {place[:20]} in pixels.")
        return Response(png, media_type="image/png", headers={"cache-control": "max-age=3600"})

    @app.get("/healthz", responses={200: {"model": responses.Health}})
    async def health() -> Response:
        """Whether it can answer, and what it has done so far."""
        status = "ok" if batcher.alive else "the model has stopped"
        return JSONResponse({"status": status, **asdict(batcher.tally)}, 200 if batcher.alive else 503)


def _add_pages(app: FastAPI, model: dict[str, Any]) -> None:
    fresh = {"cache-control": "no-cache"}

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(PAGE / "index.html", headers=fresh)

    @app.get("/page/house.css", include_in_schema=False)
    async def house_style() -> Response:
        return FileResponse(str(resources.files("ricnet.report") / "page.css"), headers=fresh)

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        return HTMLResponse(docs_html(app.openapi(), model, str(request.base_url).rstrip("/")), headers=fresh)

    app.mount("/page", StaticFiles(directory=PAGE))


async def _explain(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = {
        404: f"there is nothing at {request.url.path[:100]}; see /docs.",
        405: f"{request.url.path[:100]} is not asked by {request.method}; see /docs.",
    }
    sentence = words.get(error.status_code, str(error.detail))
    body = problem(sentence, request.state.request_id)
    return Response(body, error.status_code, error.headers, media_type="application/json")


# Listening.


def listen(host: str, port: int) -> socket.socket:
    """From here on clients can connect; they are answered once the server runs."""
    require(0 <= port <= 65535, "port", port, "from 0 to 65535")
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:  # the latter of names that cannot be one, such as a..b
        raise RicnetError(
            f"--host {host} --port {port} cannot be listened on ({getattr(error, 'strerror', None) or error}); "
            "choose another --port, or 0 for any that is free."
        ) from error
    # The same socket, marked as TCP: asyncio turns off Nagle's algorithm only where that is said. Otherwise the second
    # half of an answer waits for the client to acknowledge the first, which takes 40 ms on Linux.
    return socket.socket(listening.family, listening.type, socket.IPPROTO_TCP, listening.detach())


def address_of(listening: socket.socket) -> str:
    """What to type into a browser on this machine."""
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(app: FastAPI, listening: socket.socket, open_browser: bool = False) -> None:
    """Until Ctrl-C or SIGTERM; then no one new is let in, and those who are in are answered."""
    _log_to_stderr()
    if open_browser:
        threading.Thread(target=webbrowser.open, args=[address_of(listening)], daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):  # the usual way to end a server is no failure
        server(app, GRACE_SECONDS).run(sockets=[listening])


def _log_to_stderr() -> None:
    log = logging.getLogger("ricnet.server")
    if not log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
