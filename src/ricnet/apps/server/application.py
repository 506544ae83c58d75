"""The routes of a served model, and the process that answers until it is stopped."""

import asyncio
import contextlib
import json
import logging
import shlex
import socket
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, FileSystemLoader
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from ricnet.apps.commands.decisions import Decisions
from ricnet.apps.server import requests, responses
from ricnet.apps.server.batching import Batcher, Question
from ricnet.apps.server.connections import Guard, address_of, most_connections, server
from ricnet.apps.server.limits import Hosts, Limits, Refusal
from ricnet.apps.server.requests import Decoders, File, Options, RequestInputs
from ricnet.evaluation.conformal import SetRule
from ricnet.evaluation.costs import Costs
from ricnet.io import short
from ricnet.models.classifier import Classifier
from ricnet.models.guarantees import read_calibration, set_rule
from ricnet.version import __version__

PAGE = Path(__file__).parent / "page"
MAX_FIELDS = 8  # of a form, beside its files; Options has seven
GRACE_SECONDS = 30  # at shutdown, to answer the requests that have arrived
BODY = {
    "multipart/form-data": {"schema": requests.Upload.model_json_schema()},
    "application/json": {"schema": requests.Ask.model_json_schema()},
}
REFUSALS = {
    413: "Too large: the body, an image, all images, their number, or the time to decode one.",
    415: "Neither a form nor JSON.",
    421: "The Host header has a name that this server does not answer for.",
    422: "Not readable, or not what the model reads.",
    429: "Too many requests in progress; try again in a moment.",
    503: "The server is shutting down.",
}


def build(
    classifier: Classifier,
    name: str,
    limits: Limits | None = None,
    hosts: Hosts | None = None,
    costs: Costs | None = None,
) -> FastAPI:
    """The application for one model. The model is run once before the first request, since its first run is slow.
    With `costs`, answers are those of least expected cost."""
    limits = limits or Limits()
    # At most half of the connections may wait for an answer, so that new clients can connect.
    limits = replace(limits, max_waiting=min(limits.max_waiting, most_connections() // 2))
    limits = limits.of_input(classifier.input_shape)
    if classifier.calibration is None and classifier.folder is not None:  # read once, not for every request
        classifier = replace(classifier, calibration=read_calibration(classifier.folder))
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
        description="A classifier that refines its belief step by step and decides when to stop.",
        docs_url=None,  # FastAPI's pages load scripts from other sites
        redoc_url=None,
        lifespan=lifespan,
    )
    app.add_middleware(Guard, limits=limits, hosts=hosts or Hosts())
    app.add_exception_handler(HTTPException, _explain)
    _add_predict(app, classifier, batcher, decoders, limits, costs)
    _add_facts(app, classifier, batcher, responses.describe(classifier, name, limits))
    _add_pages(app, requests.example(classifier))
    return app


def _add_predict(
    app: FastAPI, classifier: Classifier, batcher: Batcher, decoders: Decoders, limits: Limits, costs: Costs | None
) -> None:
    refusals: dict[int | str, Any] = {
        code: {"model": responses.Problem, "description": words} for code, words in REFUSALS.items()
    }
    horizon, most_steps = responses.horizon(classifier), responses.most_steps(classifier)

    @app.post(
        "/v1/predict",
        responses={200: {"model": responses.Answers}, **refusals},
        openapi_extra={"requestBody": {"required": True, "content": BODY}},
    )
    async def predict(request: Request) -> Response:
        """Classify images, rows or texts; each is refined until the model expects no further gain."""
        read, options = await _read(request, classifier, decoders, limits)
        own, notes = _within_budget(classifier, options, most_steps)  # refuses before anything is decoded
        if costs is not None and options.abstain_below is not None:
            raise Refusal(422, "this server answers by costs; leave abstain_below out.")
        decisions = Decisions(_set_rule(own or classifier, options), costs)
        given = read if isinstance(read, RequestInputs) else await decoders.decode(read, request.is_disconnected)
        deadline = None if options.max_ms is None else request.state.arrived + options.max_ms / 1000
        # max_steps equal to the horizon changes nothing; without it, more requests can be batched.
        max_steps = None if options.max_steps == (responses.horizon(own) if own else horizon) else options.max_steps
        path = await asyncio.wrap_future(batcher.ask(Question(given.inputs, max_steps, options.trace, deadline, own)))

        def respond() -> Response:
            how = (options.top, options.abstain_below, options.trace)
            said = decisions.answers(path, given.names, classifier.class_names, *how)
            return JSONResponse({"predictions": said, "notes": [*given.notes, *notes]})

        return await asyncio.to_thread(respond) if options.trace else respond()  # a trace may be large


async def _read(
    request: Request, classifier: Classifier, decoders: Decoders, limits: Limits
) -> tuple[RequestInputs | list[File], Options]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        return await decoders.run(requests.read_json, await request.body(), classifier, limits)
    if kind != "multipart/form-data":
        raise Refusal(415, "send images as multipart/form-data, or JSON as application/json.")
    files, options = await _read_form(request, limits.max_batch)
    requests.check_inputs("images", len(files), classifier, limits)
    return files, options


async def _read_form(request: Request, most: int) -> tuple[list[File], Options]:
    try:
        async with request.form(max_files=most, max_fields=MAX_FIELDS) as form:
            parts = form.multi_items()
            files = [File(x.filename or "", await x.read()) for _, x in parts if isinstance(x, UploadFile)]
            return files, requests.parse(Options, {key: x for key, x in parts if isinstance(x, str)})
    except HTTPException as error:
        if "Too many files" in error.detail:
            raise Refusal(413, f"send at most {most} images at once.") from None
        raise Refusal(422, f"the form cannot be read: {error.detail}") from None


def _within_budget(classifier: Classifier, options: Options, most: int) -> tuple[Classifier | None, list[str]]:
    """The model with the request's own budget, None without one, and notes about it. Its steps are not recorded as CUDA
    graphs, which would hold memory for every budget requested."""
    if options.max_steps is not None and options.max_steps > most:
        raise Refusal(422, f"max_steps is {short(str(options.max_steps), 20)}; it must be at most {most}.")
    if options.budget is None:
        return None, []
    frugal, told = classifier.within(options.budget)
    return replace(frugal, recordings=None), [] if told is None else [f"{told}."]


def _set_rule(classifier: Classifier, options: Options) -> SetRule | None:
    if options.coverage is None:
        return None
    if options.max_ms is not None:
        raise Refusal(422, "coverage holds without a time limit; leave max_ms out.")
    return set_rule(classifier, options.coverage, max_steps=options.max_steps)


def _add_facts(app: FastAPI, classifier: Classifier, batcher: Batcher, model: dict[str, Any]) -> None:
    examples, images = responses.examples(classifier)

    @app.get("/v1/model", responses={200: {"model": responses.Model}})
    async def about() -> Response:
        """The model: its inputs, classes and test results, and the limits of this server."""
        return JSONResponse(model)

    @app.get("/v1/examples", responses={200: {"model": list[responses.Example]}})
    async def list_examples() -> Response:
        """A few test examples stored with the model."""
        return JSONResponse(examples)

    @app.get("/v1/examples/{place}.png", include_in_schema=False)
    async def show_example(place: str) -> Response:
        if place not in images:
            raise Refusal(404, f"there is no example image {place[:20]}; see /v1/examples.")
        return Response(images[place], media_type="image/png", headers={"cache-control": "max-age=3600"})

    @app.get("/healthz", responses={200: {"model": responses.Health}})
    async def health() -> Response:
        """Whether the model can answer, and counts of its answers."""
        status = "ok" if batcher.alive else "the model has stopped"
        return JSONResponse({"status": status, **asdict(batcher.tally)}, 200 if batcher.alive else 503)


def _add_pages(app: FastAPI, body: Mapping[str, Any]) -> None:
    fresh = {"cache-control": "no-cache"}
    style = str(resources.files("ricnet.report") / "page.css")

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(PAGE / "index.html", headers=fresh)

    @app.get("/page/house.css", include_in_schema=False)
    async def house_style() -> Response:
        return FileResponse(style, headers=fresh)

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        return HTMLResponse(docs_html(app.openapi(), body, str(request.base_url)), headers=fresh)

    app.mount("/page", StaticFiles(directory=PAGE))


def docs_html(spec: Mapping[str, Any], body: Mapping[str, Any], origin: str) -> str:
    """The page /docs: a command that sends `body` to the server at `origin`, then routes and types of openapi.json.
    FastAPI's own page loads scripts from other sites; this one has none."""
    if "images" in body:
        sends = "-F images=@cat.jpg -F images=@dog.jpg -F trace=true"
    else:
        sends = f"--json {shlex.quote(json.dumps({**body, 'max_steps': 5}, ensure_ascii=False))}"
    command = f"curl {sends} {shlex.quote(origin.rstrip('/') + '/v1/predict')}"
    templates = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True)
    return templates.get_template("docs.html").render(spec=spec, command=command).lstrip()


async def _explain(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path[:100]
    words = {404: f"there is nothing at {path}", 405: f"{path} does not accept {request.method}"}.get(error.status_code)
    raise Refusal(error.status_code, f"{words}; see /docs." if words else error.detail, error.headers)


def run(app: FastAPI, listening: socket.socket, open_browser: bool = False) -> None:
    """Serve until Ctrl-C or SIGTERM; then accept no new requests and answer those that have arrived."""
    log = logging.getLogger("ricnet.server")
    if not log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    if open_browser:
        threading.Thread(target=webbrowser.open, args=[address_of(listening)], daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is the usual way to stop
        server(app, GRACE_SECONDS).run(sockets=[listening])
