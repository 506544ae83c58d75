"""The page /docs, rendered from openapi.json. FastAPI's own page loads scripts from other sites; this one has none."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

Schema = Mapping[str, Any]
Term = tuple[str, str, str]


def docs_html(spec: Schema, model: Schema, origin: str) -> str:
    """Routes, then types. `spec` is openapi.json, `model` the response of /v1/model, `origin` the server's address."""
    folder = FileSystemLoader(Path(__file__).parent)
    page = Environment(loader=folder, autoescape=True, trim_blocks=True).get_template("docs.html")
    return page.render(spec=spec, example=_example(model, origin), fields=_fields, responses=_responses).lstrip()


def _fields(schema: Schema) -> list[Term]:
    fields = schema.get("properties", {}).items()
    return [(name, _type(field), field.get("description", "")) for name, field in fields]


def _responses(route: Schema) -> list[Term]:
    found = route["responses"].items()
    return [(code, _type(one["content"]["application/json"]["schema"]), one["description"]) for code, one in found]


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(kind for part in schema["anyOf"] if (kind := _type(part)) != "null")
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    return "file" if schema.get("format") == "binary" else str(schema.get("type", ""))


def _example(model: Schema, origin: str) -> str:
    """A command that asks this model."""
    address, inputs = shlex.quote(f"{origin}/v1/predict"), model["input"]
    if inputs["kind"] == "image":
        return f"curl -F images=@cat.jpg -F images=@dog.jpg -F trace=true {address}"
    if inputs["kind"] == "text":
        body: dict[str, Any] = {"texts": ["a sentence", "another one"]}
    elif inputs["columns"] is None:
        body = {"features": [[0] * inputs["shape"][0]]}
    else:
        cells = {one["name"]: one["values"][0] if one["values"] else one["date"] or 0 for one in inputs["columns"]}
        body = {"rows": [cells]}
    asked = json.dumps({**body, "max_steps": 5}, ensure_ascii=False)
    return f"curl --json {shlex.quote(asked)} {address}"
