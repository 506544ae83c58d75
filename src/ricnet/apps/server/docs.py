"""The API's own page, made of openapi.json. FastAPI's loads its scripts from elsewhere; this one needs none."""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

Schema = Mapping[str, Any]

PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Ask from a program · ricnet</title>
<link rel="icon" href="/page/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/page/house.css">
<link rel="stylesheet" href="/page/docs.css">
</head>
<body>
<header>
<h1>Ask from a program</h1>
<p class="lead">Everything the page does goes through these addresses. <a href="/openapi.json">openapi.json</a> says the
same to machines.</p>
</header>
<main>
<section>
<h2>For instance</h2>
<pre>{example}</pre>
</section>
{sections}
</main>
<footer><a href="/">Back to the page</a></footer>
</body>
</html>
"""


def docs_html(spec: Schema, model: Schema, origin: str) -> str:
    """The routes, then the types they speak of. `spec` is openapi.json, `model` what /v1/model says, `origin` where the
    reader reached the server."""
    routes = [
        _section(f'<span class="verb">{escape(verb.upper())}</span> {escape(path)}', *_route(route))
        for path, verbs in spec["paths"].items()
        for verb, route in verbs.items()
    ]
    types = [_section(escape(name), _fields(schema)) for name, schema in spec["components"]["schemas"].items()]
    return PAGE.format(example=escape(_example(model, origin)), sections="\n".join(routes + types))


def _section(title: str, *parts: str) -> str:
    return "\n".join(["<section>", f"<h2><code>{title}</code></h2>", *parts, "</section>"])


def _route(route: Schema) -> Iterator[str]:
    yield f"<p>{escape(route['description'])}</p>"
    for kind, body in route.get("requestBody", {}).get("content", {}).items():
        yield f"<h4>Send, as {escape(kind)}</h4>\n{_fields(body['schema'])}"
    answers = route["responses"].items()
    kinds = [_type(answer["content"]["application/json"]["schema"]) for _, answer in answers]
    yield "<h4>Get</h4>"
    yield _terms((code, kind, answer["description"]) for (code, answer), kind in zip(answers, kinds, strict=True))


def _fields(schema: Schema) -> str:
    fields = schema.get("properties", {}).items()
    return _terms((name, _type(field), field.get("description", "")) for name, field in fields)


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(kind for part in schema["anyOf"] if (kind := _type(part)) != "null")
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    return "file" if schema.get("format") == "binary" else str(schema.get("type", ""))


def _terms(entries: Iterable[tuple[str, str, str]]) -> str:
    rows = (
        f"<div><dt>{escape(name)}<small>{escape(kind)}</small></dt><dd>{escape(text)}</dd></div>"
        for name, kind, text in entries
    )
    return "<dl>\n" + "\n".join(rows) + "\n</dl>"


def _example(model: Schema, origin: str) -> str:
    inputs = model["input"]
    if inputs["kind"] == "image":
        return f"curl -F images=@cat.jpg -F images=@dog.jpg -F trace=true {shlex.quote(origin + '/v1/predict')}"
    if inputs["kind"] == "text":
        body: dict[str, Any] = {"texts": ["a sentence", "another one"]}
    elif inputs["columns"] is None:
        body = {"features": [[0] * inputs["shape"][0]]}
    else:
        body = {"rows": [{column["name"]: _cell(column) for column in inputs["columns"]}]}
    asked = json.dumps({**body, "max_steps": 5}, ensure_ascii=False)
    return f"curl --json {shlex.quote(asked)} {shlex.quote(origin + '/v1/predict')}"


def _cell(column: Schema) -> Any:
    """One that the model knows: a value, a date, or else a number."""
    return column["values"][0] if column["values"] else column["date"] or 0
