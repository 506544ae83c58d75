"""Routes as clients use them: predictions, deadlines, files that are refused."""

import base64
import html
import io
import json
import re
import shlex
import time
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from refusals import cases
from ricnet.apps.cli import main
from ricnet.apps.server.application import docs_html
from ricnet.evaluation.costs import costs_of
from ricnet.models.classifier import Classifier

from .asking import beliefs, open_request, png, png_that_claims, post, refused
from .conftest import serving


def test_answers_are_those_of_the_model(client: httpx.Client, digits: Classifier, inputs: torch.Tensor) -> None:
    response = post(client, *(png(x[0]) for x in inputs[:8]), top=10)
    path = digits.refine(inputs[:8])
    assert response.status_code == 200
    assert response.json()["notes"] == []
    for row, said in enumerate(response.json()["predictions"]):
        assert said["input"] == f"{row}.png"
        best = int(path.final[row].argmax())
        assert said["answer"] == digits.class_names[best]
        assert said["steps"] == path.halt_step[row]
        assert said["confidence"] == pytest.approx(path.final[row, best].exp().item(), abs=1e-5)
        assert beliefs(said, digits) == pytest.approx(path.final[row].exp().tolist(), abs=1e-5)
        ranks = [entry["probability"] for entry in said["top"]]
        assert ranks == sorted(ranks, reverse=True)
        assert set(said) == {"input", "answer", "confidence", "steps", "top"}


def test_the_server_answers_as_ric_predict(
    client: httpx.Client, digits: Classifier, inputs: torch.Tensor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "0.png"
    file.write_bytes(png(inputs[0, 0]))
    threshold = digits.method.halt_threshold  # type: ignore[attr-defined]
    main(["predict", str(digits.folder), str(file), "--json", "--trace", "--top", "3", f"--halt-threshold={threshold}"])
    expected = json.loads(capsys.readouterr().out)
    [said] = post(client, file.read_bytes(), top=3, trace="true").json()["predictions"]
    assert list(said) == list(expected)
    assert said["top"][0]["class"] == said["answer"] == expected["answer"]
    assert said["halt_probability"] is None
    for name in ("beliefs", "values"):
        assert np.allclose(said.pop(name), expected.pop(name), atol=1e-5)
    path = digits.refine(inputs[:1], halt=False)
    assert said["steps"] == path.halt_step[0] < path.steps == 4
    for left, right in zip(said.pop("top"), expected.pop("top"), strict=True):
        assert left == pytest.approx(right, abs=1e-5)
    assert said == pytest.approx(expected | {"input": file.name}, abs=1e-5)


def test_steps_and_time_are_limited(client: httpx.Client, inputs: torch.Tensor) -> None:
    image = png(inputs[0, 0])
    assert post(client, image, max_steps=1).json()["predictions"][0]["steps"] == 1
    assert post(client, image, max_ms=1e-6).json()["predictions"][0]["steps"] == 1
    same = [
        post(client, image, **more).json() for more in ({}, {"max_steps": 4}, {"max_steps": 99}, {"max_ms": 60_000})
    ]
    assert all(answer["predictions"][0]["steps"] == same[0]["predictions"][0]["steps"] for answer in same)
    assert client.get("/v1/model").json()["limits"]["max_steps"] == 200


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("max_steps", 0, "max_steps should be greater than or equal to 1."),
        ("max_steps", 201, "max_steps is 201; it must be at most 200."),
        ("max_steps", "9" * 100, f"max_steps is {'9' * 19}…; it must be at most 200."),
        ("max_ms", -1, "max_ms should be greater than 0."),
        ("max_ms", "nan", "max_ms should be a finite number."),
        ("abstain_below", 1.5, "abstain_below should be less than or equal to 1."),
        ("abstain_below", "nan", "abstain_below should be a finite number."),
        ("top", 0, "top should be greater than or equal to 1."),
        ("trace", "perhaps", "trace should be a valid boolean, unable to interpret input."),
        ("max_step", 3, "there is no field 'max_step'; see /docs for the fields."),
    ],
)
def test_options_that_are_refused(
    client: httpx.Client, inputs: torch.Tensor, field: str, value: object, sentence: str
) -> None:
    assert refused(post(client, png(inputs[0, 0]), **{field: value}), 422) == sentence


def test_max_steps_above_the_horizon_takes_its_place(digits: Classifier, inputs: torch.Tensor) -> None:
    """Of a model whose chosen horizon is 2 and that does not halt by its value."""
    short = replace(digits, method=replace(digits.method, horizon=2, halt_threshold=-1e9))  # type: ignore[call-arg]
    with serving(short) as client:
        for max_steps, expected in ((None, 2), (1, 1), (2, 2), (3, 3), (12, 12)):
            fields = {"top": 10} | ({} if max_steps is None else {"max_steps": max_steps})
            [said] = post(client, png(inputs[0, 0]), **fields).json()["predictions"]
            path = short.refine(inputs[:1], max_steps)
            assert said["steps"] == path.halt_step[0] == expected
            assert beliefs(said, short) == pytest.approx(path.final[0].exp().tolist(), abs=1e-5)
        [traced] = post(client, png(inputs[0, 0]), max_steps=12, trace="true").json()["predictions"]
        assert len(traced["beliefs"]) == 12


def test_a_deadline_is_kept(digits: Classifier, inputs: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 50 ms: after the first there is no time for a second within 90 ms."""
    made = type(digits.method).step  # type: ignore[attr-defined]

    def slow(*given: Any, **more: Any) -> Any:
        time.sleep(0.05)
        return made(*given, **more)

    patient = replace(digits, method=replace(digits.method, horizon=40, halt_threshold=-1e9))  # type: ignore[call-arg]
    with serving(patient) as client:
        image = png(inputs[0, 0])
        post(client, image)
        monkeypatch.setattr(type(digits.method), "step", slow)
        assert post(client, image, max_ms=90).json()["predictions"][0]["steps"] == 1
        began = time.perf_counter()
        [said] = post(client, image, max_ms=400).json()["predictions"]
        assert time.perf_counter() - began < 1.5  # 40 steps take 2 s
        assert 2 <= said["steps"] <= 7


def test_a_deadline_counts_from_the_end_of_the_body(client: httpx.Client, inputs: torch.Tensor) -> None:
    body = json.dumps({"images": base64.b64encode(png(inputs[0, 0])).decode(), "max_ms": 400, "trace": True}).encode()
    with open_request(client, len(body), body[:-1]) as line:
        time.sleep(0.5)
        line.sendall(body[-1:])
        answer = b""
        while not answer.endswith(b"}"):
            answer += line.recv(10_000)
        [said] = json.loads(answer.partition(b"\r\n\r\n")[2])["predictions"]
        assert len(said["beliefs"]) == 4


def zip_bomb() -> bytes:
    with io.BytesIO() as archive:
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("zeros", bytes(20_000_000))
        return archive.getvalue()


WHOLE = png(np.random.default_rng(0).integers(0, 255, (60, 60), dtype=np.uint8))
UNREADABLE = {"half": WHOLE[: len(WHOLE) // 2], "a header": WHOLE[:20], "empty": b"", "GIF": b"GIF89a"}


@pytest.mark.parametrize("content", cases(UNREADABLE | {"no pixels": png_that_claims(8, 8), "a bomb": zip_bomb()}))
def test_files_that_cannot_be_read_are_named(client: httpx.Client, content: bytes) -> None:
    assert "0.png is not a readable image" in refused(post(client, content), 422)


def test_files_that_are_no_images(client: httpx.Client, inputs: torch.Tensor) -> None:
    swollen = png_that_claims(8, 8, zlib.compress(bytes(20_000_000), 9))
    assert post(client, swollen).status_code in (200, 422)  # what is beyond the header's pixels is never unpacked
    assert "%!PS" not in refused(post(client, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), 422)
    assert "no image; send at least one" in refused(client.post("/v1/predict", files={"trace": (None, "true")}), 422)
    assert refused(post(client, png(inputs[0, 0]), b"junk"), 422).startswith("1.png")


@pytest.mark.parametrize("size", [(50_000, 50_000), (2**31 - 1, 1), (12_000, 12_000), (1001, 1000)], ids=str)
def test_an_image_that_is_too_large(client: httpx.Client, size: tuple[int, int]) -> None:
    sentence = refused(post(client, png_that_claims(*size)), 413)
    assert "0.png is too large" in sentence
    assert "at most 1 megapixels" in sentence


def test_images_that_are_too_large_together(client: httpx.Client) -> None:
    half = png(np.zeros((800, 800), np.uint8))
    assert post(client, *[half] * 6).status_code == 200
    sentence = refused(post(client, *[half] * 7), 413)
    assert "6.png and the images before it" in sentence
    assert "4 megapixels" in sentence


def test_too_many_images(client: httpx.Client, inputs: torch.Tensor) -> None:
    image = png(inputs[0, 0])
    assert "at most 8" in refused(post(client, *[image] * 9), 413)
    assert "at most 8" in refused(post(client, *[image] * 200), 413)
    encoded = base64.b64encode(image).decode()
    assert "at most 8" in refused(client.post("/v1/predict", json={"images": [encoded] * 9}), 413)
    assert "Too many fields" in refused(
        client.post("/v1/predict", files={f"f{i}": (None, "x") for i in range(50)}), 422
    )


@pytest.mark.parametrize(
    ("field", "kind", "status", "named"),
    [
        *(
            ("content-type", kind, 415, "multipart/form-data")
            for kind in ("text/plain", "image/png", "application/x-www-form-urlencoded", "nonsense", "")
        ),
        ("content-encoding", "gzip", 415, "compressed"),
        ("content-type", "multipart/form-data", 422, ""),
        ("content-type", "multipart/form-data; boundary=", 422, ""),
        ("content-type", "multipart/form-data; boundary=x", 422, ""),
    ],
)
def test_bodies_of_the_wrong_kind(client: httpx.Client, field: str, kind: str, status: int, named: str) -> None:
    response = client.post("/v1/predict", content=b"--y\r\nnothing", headers={field: kind})
    assert named in refused(response, status)


def test_unknown_paths_are_404(client: httpx.Client) -> None:
    assert "/nothing" in refused(client.get("/nothing"), 404)
    assert "/v1/predict does not accept GET" in refused(client.get("/v1/predict"), 405)
    assert "/v1/examples/999" not in refused(client.get("/v1/examples/999.png"), 404)
    assert "no example" in refused(client.get("/v1/examples/999.png"), 404)
    assert "no example" in refused(client.get(f"/v1/examples/{'9' * 5000}.png"), 404)
    for path in ("/page/../application.py", "/page/%2e%2e/application.py", "/page/..%2fapplication.py"):
        assert client.get(path).status_code == 404


def test_requests_that_arrive_together_are_counted(numbers_client: httpx.Client) -> None:
    before = numbers_client.get("/healthz").json()
    numbers_client.post("/v1/predict", json={"features": [[1, 2, 3, 4]] * 5})
    after = numbers_client.get("/healthz").json()
    assert (after["requests"] - before["requests"], after["inputs"] - before["inputs"]) == (1, 5)
    assert after["model_seconds"] > before["model_seconds"]


def test_openapi_describes_the_routes(client: httpx.Client) -> None:
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


def test_the_page_of_the_api_quotes_everything_for_html_and_for_a_shell() -> None:
    spec = {"paths": {}, "components": {"schemas": {"<b>": {}}}}
    body = {"rows": [{"</pre><script>'": 0}]}
    page = docs_html(spec, body, "http://x><script>;rm/")
    assert "<script" not in page
    assert "<b>" not in page
    [command] = re.findall("<pre>(.+)</pre>", page)
    curl, flag, sent, address = shlex.split(html.unescape(command))
    assert (curl, flag, address) == ("curl", "--json", "http://x><script>;rm/v1/predict")
    assert json.loads(sent)["rows"] == body["rows"]


def test_a_request_may_ask_for_a_prediction_set(features: Classifier) -> None:
    random = np.random.default_rng(1)
    y = np.arange(60) % 3
    x = (random.normal(size=(60, 4)) + y[:, None]).astype(np.float32)
    ready = replace(features, folder=None).calibrated(x, [features.class_names[k] for k in y])
    with serving(ready) as client:
        assert client.get("/v1/model").json()["calibration"] == 60
        found = client.post("/v1/predict", json={"features": x[:5].tolist(), "coverage": 0.9}).json()["predictions"]
        assert [one["set"] for one in found] == ready.predict_set(x[:5], 0.9)
        refused = client.post("/v1/predict", json={"features": x[:1].tolist(), "coverage": 0.99})
        assert (refused.status_code, "at least 99 calibration examples" in refused.json()["error"]) == (422, True)
        refused = client.post("/v1/predict", json={"features": x[:1].tolist(), "coverage": 0.9, "max_ms": 5})
        assert "leave max_ms out" in refused.json()["error"]
    with serving(replace(features, folder=None)) as client:
        refused = client.post("/v1/predict", json={"features": x[:1].tolist(), "coverage": 0.9})
        assert "needs calibration examples" in refused.json()["error"]


def test_with_costs_the_answer_is_that_of_least_expected_cost(features: Classifier) -> None:
    costs = costs_of([[0, 1, 1, 9], [1, 0, 1, 9], [100, 100, 0, 9]], features.class_names)
    x = np.random.default_rng(1).normal(size=(20, 4)).astype(np.float32)
    beliefs = features.predict_proba(x).astype(np.float64)
    expected = beliefs @ costs.matrix
    with serving(features, costs=costs) as client:
        found = client.post("/v1/predict", json={"features": x.tolist()}).json()["predictions"]
        assert [one["answer"] for one in found] == [costs.decisions[k] for k in expected.argmin(1)]
        assert [one["expected_cost"] for one in found] == pytest.approx(expected.min(1).tolist(), rel=1e-4)
        assert [one["answer"] for one in found] != [features.class_names[k] for k in beliefs.argmax(1)]
        refused = client.post("/v1/predict", json={"features": x.tolist(), "abstain_below": 0.5})
        assert (refused.status_code, "leave abstain_below out" in refused.json()["error"]) == (422, True)
