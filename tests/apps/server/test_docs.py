"""openapi.json, and the page made of it."""

import html
import json
import re
import shlex

import httpx

from ricnet.apps.server.docs import docs_html


def test_openapi_tells_what_there_is(client: httpx.Client) -> None:
    spec = client.get("/openapi.json").json()
    assert set(spec["paths"]) == {"/v1/predict", "/v1/model", "/v1/examples", "/healthz"}
    route = spec["paths"]["/v1/predict"]["post"]
    assert set(route["requestBody"]["content"]) == {"multipart/form-data", "application/json"}
    assert {"200", "413", "415", "422", "429"} <= set(route["responses"])
    for body in route["requestBody"]["content"].values():  # unknown fields are refused
        assert body["schema"]["additionalProperties"] is False
    assert len(spec["components"]["schemas"]["Health"]["required"]) == 5


def test_the_api_has_a_page_that_needs_nothing_from_elsewhere(table_client: httpx.Client) -> None:
    spec, page = table_client.get("/openapi.json").json(), table_client.get("/docs").text
    assert set(re.findall(r'(?:href|src)="([^"]+)"', page)) == {
        *("/", "/openapi.json", "/page/icon.svg", "/page/house.css", "/page/docs.css"),
    }
    assert "<script" not in page
    for link in ("/page/icon.svg", "/page/house.css", "/page/docs.css"):
        assert table_client.get(link).status_code == 200
    words = html.unescape(page)
    for path in spec["paths"]:
        assert path in words
    for name, schema in spec["components"]["schemas"].items():
        assert f"<code>{name}</code>" in words
        assert all(field["description"] in words for field in schema["properties"].values())
    [example] = re.findall(r"curl --json '(.+)' http://", words)
    assert (
        table_client.post("/v1/predict", content=example, headers={"content-type": "application/json"}).status_code
        == 200
    )


def test_what_the_page_of_the_api_quotes_is_text() -> None:
    column = {"name": "</pre><script>'", "values": None, "date": None}
    model = {"input": {"kind": "table", "shape": [1], "columns": [column]}}
    page = docs_html({"paths": {}, "components": {"schemas": {}}}, model, "http://x><script>")
    assert "<script" not in page
    [command] = re.findall("<pre>(.+)</pre>", page)
    assert json.loads(shlex.split(html.unescape(command))[2])["rows"] == [{column["name"]: 0}]


def test_the_page_of_the_api_quotes_the_address_for_a_shell() -> None:
    model = {"input": {"kind": "image", "shape": [1, 8, 8], "columns": None}}
    page = docs_html({"paths": {}, "components": {"schemas": {"<b>": {}}}}, model, "http://x;rm")
    [command] = re.findall("<pre>(.+)</pre>", page)
    assert shlex.split(command.replace("&#39;", "'"))[-1] == "http://x;rm/v1/predict"
    assert "<b>" not in page
