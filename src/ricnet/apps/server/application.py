"""The routes: what can be asked of a served model, over HTTP and on its page."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from ricnet.apps.server import schema
from ricnet.apps.server.about import describe, horizon, samples
from ricnet.apps.server.answers import answers
from ricnet.apps.server.batching import Batcher, Question
from ricnet.apps.server.guard import Guard, problem
from ricnet.apps.server.limits import Limits, Refusal
from ricnet.apps.server.reading import Asked, File, read_files, read_json
from ricnet.core.trajectory import Trajectory
from ricnet.training.classifier import Classifier
from ricnet.version import __version__

PAGE = Path(__file__).parent / "page"
FIELDS = 8
"""Most fields of a form beside its files; there are four to fill in."""
DECODERS = min(2, os.cpu_count() or 1)
"""Images decoded at a time: each may need some hundred megabytes."""
FILES = "Image files, one field for each: PNG, JPEG, WebP, GIF, BMP, TIFF or PPM."
BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "description": "One or many image files, and how to refine them.",
                    "properties": {
                        "images": {
                            "type": "array",
                            "items": {"type": "string", "format": "binary"},
                            "description": FILES,
                        },
                        **schema.Options.model_json_schema()["properties"],
                    },
                    "required": ["images"],
                }
            },
            "application/json": {"schema": schema.Ask.model_json_schema()},
        },
    }
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    code: {"model": schema.Problem, "description": words}
    for code, words in {
        413: "Too much at once: the body, the pixels of its images, or their number.",
        415: "Neither a form nor JSON.",
        422: "It cannot be read, or is not what the model reads.",
        429: "Too many requests are under way; try again in a moment.",
        503: "The server is shutting down.",
    }.items()
}


def build(classifier: Classifier, name: str, limits: Limits | None = None) -> FastAPI:
    """The application for one model, which is run once before the first request: it may take long to get going."""
    limits = limits or Limits()
    classifier = classifier.recorded()
    classifier.refine(torch.zeros(1, *classifier.input_shape, dtype=_dtype(classifier)))
    batcher = Batcher(classifier, limits.max_batch)
    decoders = ThreadPoolExecutor(DECODERS, "decoder")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(batcher.close)
        decoders.shutdown()

    app = FastAPI(
        title=f"ricnet: {name}",
        version=__version__,
        description="A classifier that refines its belief step by step and stops by itself.",
        docs_url=None,  # FastAPI's own pages load their scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.add_middleware(Guard, limits=limits)
    app.add_exception_handler(HTTPException, _explain)
    _add_answers(app, classifier, batcher, decoders, limits)
    _add_facts(app, classifier, batcher, describe(classifier, name, limits))
    _add_pages(app)
    return app


def _dtype(classifier: Classifier) -> torch.dtype:
    return torch.uint8 if len(classifier.input_shape) == 3 else torch.float32


def _add_answers(
    app: FastAPI, classifier: Classifier, batcher: Batcher, decoders: ThreadPoolExecutor, limits: Limits
) -> None:
    most = horizon(classifier)

    @app.post("/v1/predict", responses={200: {"model": schema.Answers}, **REFUSALS}, openapi_extra=BODY)
    async def predict(request: Request) -> Response:
        """Classify images or rows; each is refined until the model expects nothing more to gain."""
        body = await _read(request, limits)
        arrived = time.perf_counter()
        loop = asyncio.get_running_loop()
        if isinstance(body, bytes):
            asked, options = await loop.run_in_executor(decoders, read_json, body, classifier, limits)
        else:
            files, options = body
            asked = await loop.run_in_executor(decoders, read_files, files, classifier, limits)
        deadline = None if options.max_ms is None else arrived + options.max_ms / 1000
        # A limit at the horizon is none, and those who have none can be answered together.
        max_steps = None if options.max_steps is None or options.max_steps >= most else options.max_steps
        question = Question(asked.inputs, max_steps, options.trace, deadline)
        path = await asyncio.wrap_future(batcher.ask(question))
        if options.trace:  # of many inputs, steps and classes this takes long enough to keep others waiting
            return await asyncio.to_thread(_respond, path, asked, classifier, options)
        return _respond(path, asked, classifier, options)


def _respond(path: Trajectory, asked: Asked, classifier: Classifier, options: schema.Options) -> Response:
    said = answers(path, asked.names, classifier.class_names, options.top, options.trace)
    return JSONResponse({"predictions": said, "notes": asked.notes})


async def _read(request: Request, limits: Limits) -> bytes | tuple[list[File], schema.Options]:
    """A body of JSON as it is; a form as its files and its other fields."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        return await request.body()
    if kind != "multipart/form-data":
        raise Refusal(415, "send images as multipart/form-data, or JSON as application/json.")
    try:
        async with request.form(max_files=limits.max_batch, max_fields=FIELDS) as form:
            parts = form.multi_items()
            files = [File(x.filename or "", await x.read()) for _, x in parts if isinstance(x, UploadFile)]
            return files, schema.parse_form({key: x for key, x in parts if isinstance(x, str)})
    except HTTPException as error:
        if "Too many files" in error.detail:
            raise Refusal(413, f"send at most {limits.max_batch} images at once.") from None
        raise Refusal(422, f"the form cannot be read: {error.detail}") from None


def _add_facts(app: FastAPI, classifier: Classifier, batcher: Batcher, model: dict[str, Any]) -> None:
    examples = samples(classifier)

    @app.get("/v1/model", responses={200: {"model": schema.Model}})
    async def about() -> Response:
        """What the model reads, knows and is worth, and the limits of this server."""
        return JSONResponse(model)

    @app.get("/v1/examples", responses={200: {"model": list[schema.Example]}})
    async def list_examples() -> Response:
        """A few test examples that came with the model."""
        return JSONResponse([sample.entry for sample in examples])

    pictures = {str(place): sample.png for place, sample in enumerate(examples)}

    @app.get("/v1/examples/{place}.png", include_in_schema=False)
    async def show_example(place: str) -> Response:
        png = pictures.get(place)
        if png is None:
            raise Refusal(404, f"there is no example {place[:20]} in pixels.")
        return Response(png, media_type="image/png", headers={"cache-control": "max-age=3600"})

    @app.get("/healthz", responses={200: {"model": schema.Health}})
    async def health() -> Response:
        """Whether it can answer, and what it has done so far."""
        status = "ok" if batcher.alive else "the model has stopped"
        return JSONResponse({"status": status, **asdict(batcher.tally)}, 200 if batcher.alive else 503)


def _add_pages(app: FastAPI) -> None:
    house = Path(str(resources.files("ricnet.report") / "page.css"))
    for address, file in {"/": PAGE / "index.html", "/docs": PAGE / "docs.html", "/page/house.css": house}.items():
        app.add_api_route(address, _sends(file), include_in_schema=False)
    app.mount("/page", StaticFiles(directory=PAGE))


def _sends(file: Path) -> Any:
    async def send() -> Response:
        return FileResponse(file, headers={"cache-control": "no-cache"})

    return send


async def _explain(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = {
        404: f"there is nothing at {request.url.path[:100]}; see /docs.",
        405: f"{request.url.path[:100]} is not asked by {request.method}; see /docs.",
    }
    sentence = words.get(error.status_code, str(error.detail))
    body = problem(sentence, request.state.request_id)
    return Response(body, error.status_code, error.headers, media_type="application/json")
