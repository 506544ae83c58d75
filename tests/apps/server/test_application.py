"""What clients may ask, and what strangers may try: each gets its answer, and the server lives on."""

import asyncio
import base64
import html
import io
import json
import logging
import re
import shlex
import socket
import struct
import time
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from refusals import refusal
from ricnet.apps.cli import main
from ricnet.apps.server import guard, responses
from ricnet.apps.server.application import address_of, listen
from ricnet.apps.server.docs import docs_html
from ricnet.apps.server.limits import Limits, Refusal
from ricnet.apps.server.requests import read_json
from ricnet.apps.server.responses import describe
from ricnet.data.columns import Category, Columns, Number
from ricnet.data.tables import Table
from ricnet.models.classifier import Classifier
from ricnet.report.names import ALGORITHMS

from .conftest import serving


def png(pixels: np.ndarray | torch.Tensor) -> bytes:
    with io.BytesIO() as file:
        Image.fromarray(np.asarray(pixels)).save(file, "png")
        return file.getvalue()


def png_that_claims(width: int, height: int, content: bytes = b"") -> bytes:
    """A PNG whose header says what we like."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", content) + chunk(b"IEND", b"")


def post(client: httpx.Client, *files: bytes, **fields: object) -> httpx.Response:
    parts = [("images", (f"{i}.png", content, "image/png")) for i, content in enumerate(files)]
    return client.post("/v1/predict", files=parts, data={key: str(value) for key, value in fields.items()})


def beliefs(said: dict[str, Any], classifier: Classifier) -> list[float]:
    """In the order of the classes, of an answer that names them all."""
    found = {entry["class"]: entry["probability"] for entry in said["top"]}
    return [found[name] for name in classifier.class_names]


def refused(response: httpx.Response, status: int) -> str:
    """The one sentence, having checked that it is one, and that the server still answers."""
    assert response.status_code == status, response.text
    said = response.json()
    assert set(said) == {"error", "request_id"}
    assert said["request_id"] == response.headers["x-request-id"]
    sentence: str = said["error"]
    assert sentence.endswith(".")
    assert "Traceback" not in sentence
    assert "\n" not in sentence
    return sentence


@pytest.fixture(autouse=True)
def _still_alive(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "client" in request.fixturenames:
        assert request.getfixturevalue("client").get("/healthz").json()["status"] == "ok"


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


def test_it_says_what_ric_predict_says(
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
    assert "max_steps" in refused(post(client, image, max_steps=0), 422)
    assert client.get("/v1/model").json()["limits"]["max_steps"] == 200
    assert "at most 200" in refused(post(client, image, max_steps=201), 422)
    assert "at most 200" in refused(post(client, image, max_steps="9" * 100), 422)
    assert "max_ms" in refused(post(client, image, max_ms=-1), 422)
    assert "max_ms" in refused(post(client, image, max_ms="nan"), 422)
    assert "trace" in refused(post(client, image, trace="perhaps"), 422)
    assert "max_step" in refused(post(client, image, max_step=3), 422)


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
        assert time.perf_counter() - began < 0.5
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


def test_answers_below_a_confidence_are_unsure(
    client: httpx.Client, digits: Classifier, inputs: torch.Tensor, capsys: pytest.CaptureFixture[str]
) -> None:
    images = [png(x[0]) for x in inputs[:8]]
    sure = post(client, *images).json()["predictions"]
    between = float(np.median([said["confidence"] for said in sure]))
    for fields in ({}, {"trace": "true"}, {"top": 3}):
        told = post(client, *images, abstain_below=between, **fields).json()["predictions"]
        assert [said["answer"] for said in told] == [
            "unsure" if said["confidence"] < between else said["answer"] for said in sure
        ]
        assert [said["top"][0]["class"] for said in told] == [said["answer"] for said in sure]
    encoded = [base64.b64encode(image).decode() for image in images]
    in_json = client.post("/v1/predict", json={"images": encoded, "abstain_below": 1}).json()["predictions"]
    assert {said["answer"] for said in in_json} == {"unsure"}
    for value in (0, 1.5, "nan"):
        assert "abstain_below" in refused(post(client, images[0], abstain_below=value), 422)


def test_a_bare_row_is_answered_with_the_form_to_send(
    client: httpx.Client, numbers_client: httpx.Client, table_client: httpx.Client
) -> None:
    rows = '{"rows": {"weight": …, "colour": …}}'
    for asked, body, form in (
        (numbers_client, [1, 2, 3, 4], '{"features": [0, 0, 0, 0]} with 4 numbers'),
        (numbers_client, [[1, 2, 3, 4]], '{"features": [0, 0, 0, 0]} with 4 numbers'),
        (numbers_client, {"a": 1}, '{"features": [0, 0, 0, 0]} with 4 numbers'),
        (table_client, {"weight": 140, "colour": "red"}, rows),
        (table_client, [{"weight": 140, "colour": "red"}], rows),
        (client, "AAAA", '{"images": "…"}'),
    ):
        sentence = refused(asked.post("/v1/predict", json=body), 422)
        assert f"send {form}" in sentence


def test_images_in_json(client: httpx.Client, inputs: torch.Tensor) -> None:
    image = base64.b64encode(png(inputs[0, 0])).decode()
    as_file = post(client, png(inputs[0, 0])).json()["predictions"][0]
    for images in (image, [image], [f"data:image/png;base64,{image}"]):
        [said] = client.post("/v1/predict", json={"images": images}).json()["predictions"]
        assert said["confidence"] == pytest.approx(as_file["confidence"], abs=1e-5)
        assert said["input"] == "images[0]"
    assert "images[1] is not in base64" in refused(client.post("/v1/predict", json={"images": [image, "§"]}), 422)
    assert "reads images" in refused(client.post("/v1/predict", json={"features": [1, 2]}), 422)
    assert "one of features" in refused(client.post("/v1/predict", json={}), 422)
    assert "no image" in refused(client.post("/v1/predict", json={"images": []}), 422)


def test_features_in_json(numbers_client: httpx.Client, features: Classifier) -> None:
    rows = torch.tensor([[0.5, 0.1, -0.3, 0.2], [2.0, 2.1, 1.9, 2.5]])
    path = features.refine(rows)
    for body, expected in (({"features": rows.tolist()}, path.final), ({"features": rows[0].tolist()}, path.final[:1])):
        said = numbers_client.post("/v1/predict", json=body | {"top": 99}).json()["predictions"]
        assert np.allclose([beliefs(answer, features) for answer in said], expected.exp(), atol=1e-5)
        assert [answer["input"] for answer in said] == ["features[0]", "features[1]"][: len(expected)]
    image, named = png(np.zeros((8, 8), np.uint8)), {"rows": {"a": 1}}
    for response in (post(numbers_client, image), numbers_client.post("/v1/predict", json=named)):
        assert '"features" with its 4 numbers' in refused(response, 422)


def test_rows_of_a_table_by_the_names_of_its_columns(table_client: httpx.Client, table: Classifier) -> None:
    assert table.columns is not None
    cells = Table("rows", {"weight": ["140", ""], "colour": ["red", "pink"]}, [1, 2])
    path = table.refine(table.columns.encode(cells))
    rows = [{"colour": "red", "weight": 140}, {"weight": None, "colour": "pink", "more": 1}]
    told = table_client.post("/v1/predict", json={"rows": rows, "top": 3}).json()
    said = told["predictions"]
    assert np.allclose([beliefs(answer, table) for answer in said], path.final.exp(), atol=1e-5)
    assert [answer["input"] for answer in said] == ["rows[0]", "rows[1]"]
    [note] = told["notes"]
    assert "1 of 2 rows have a value of 'colour' that training had not, such as 'pink'" in note
    alone = table_client.post("/v1/predict", json={"rows": rows[0]}).json()
    assert alone["predictions"][0]["confidence"] == pytest.approx(said[0]["confidence"], abs=1e-5)
    assert alone["notes"] == []
    odd = [rows[0]] * 19 + [rows[0] | {"weight": "n/k"}]  # refused alone, and so among others
    said = {refused(table_client.post("/v1/predict", json={"rows": some}), 422) for some in (odd[-1:], odd)}
    assert {one.replace("rows[19]", "rows[0]") for one in said} == {min(said)}
    assert "'n/k'" in min(said)


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"colour": "red"}, "'weight';"),
        *(({"colour": "red", "weight": weight}, "'weight' should be a finite number") for weight in (nan, -inf)),
        ({}, "'weight', 'colour'"),
        ({"colour": "", "weight": "the request, row 7: heavy"}, "'weight' is 'the request, row 7: heavy'"),
        ({"colour": "red", "weight": 1e300}, "too large"),
        *(({"colour": colour, "weight": 1}, "'colour'") for colour in ([1], {}, True)),
    ],
)
def test_what_is_wrong_with_a_row_is_told_of_its_place(
    table_client: httpx.Client, row: dict[str, Any], named: str
) -> None:
    body = json.dumps({"rows": [{"colour": "red", "weight": 140}, row]})  # httpx refuses NaN itself
    asked = table_client.post("/v1/predict", content=body, headers={"content-type": "application/json"})
    sentence = refused(asked, 422)
    assert sentence.startswith("rows[1]")
    assert named in sentence


def test_what_stands_in_columns_that_the_model_does_not_read_is_no_mistake(table_client: httpx.Client) -> None:
    body = '{"rows": {"colour": "red", "weight": 140, "more": NaN, "other": [true]}}'
    found = table_client.post("/v1/predict", content=body, headers={"content-type": "application/json"})
    assert found.status_code == 200


@pytest.mark.parametrize(("no", "yes"), [("false", "true"), ("False", "True"), ("No", "yes"), ("n", "y")])
def test_true_and_false_are_what_training_wrote_for_them(table: Classifier, no: str, yes: str) -> None:
    columns = Columns("fruit", (Category("ripe", (no, yes), True), Number("weight", 0.0, 1.0, False)))
    model = replace(table, columns=columns)
    body = json.dumps({"rows": [{"ripe": ripe, "weight": 1} for ripe in (False, True)]}).encode()
    assert read_json(body, model, Limits())[0].inputs.tolist() == [[1, 0, 0, 1], [0, 1, 0, 1]]
    with pytest.raises(Refusal, match=r"rows\[0\]: 'weight'"):
        read_json(b'{"rows": {"ripe": true, "weight": true}}', model, Limits())


def test_a_table_is_asked_by_the_names_of_its_columns_alone(table_client: httpx.Client, table: Classifier) -> None:
    """Of bare numbers, 140 for a weight would be taken as 140 deviations from the mean."""
    csv = {"images": ("fruit.csv", b"weight,colour\n140,red\n", "text/csv")}
    assert "\"rows\" with 'weight', 'colour'" in refused(table_client.post("/v1/predict", files=csv), 422)
    for features in ([140.0] * table.input_shape[0], [[140.0] * table.input_shape[0]], [140, 1], []):
        sentence = refused(table_client.post("/v1/predict", json={"features": features}), 422)
        assert "\"rows\" with 'weight', 'colour'" in sentence
    assert "no row" in refused(table_client.post("/v1/predict", json={"rows": []}), 422)


def test_examples_of_a_table_are_its_cells(table_client: httpx.Client, table: Classifier) -> None:
    """Asked again, they get the answers that they got after training."""
    assert table.folder is not None
    assert table_client.get("/v1/model").json()["input"]["columns"] == [
        {"name": "weight", "values": None, "date": None},
        {"name": "colour", "values": ["blue", "green", "red"], "date": None},
    ]
    stored = np.load(table.folder / "examples.npz")
    rows = [entry["row"] for entry in table_client.get("/v1/examples").json()]
    said = table_client.post("/v1/predict", json={"rows": rows, "top": 3}).json()["predictions"]
    final = table.refine(stored["x"]).final.exp()
    assert np.allclose([beliefs(answer, table) for answer in said], final, atol=1e-3)


@pytest.mark.parametrize(
    "body",
    [
        '{"features": [[1, 2, NaN, 4]]}',
        '{"features": [[1, 2, Infinity, 4]]}',
        '{"features": [1, 2, 1e39, 4]}',
        '{"features": [3e38, 3e38, -3e38, 3e38]}',
        '{"features": [[1, 2, 3]]}',
        '{"features": [[1, 2, 3, 4], [1]]}',
        '{"features": []}',
        '{"features": [[]]}',
        '{"features": ["one", 2, 3, 4]}',
        '{"features": {"a": 1}}',
        '{"features": [[1, 2, 3, 4]], "max_steps": 1e99}',
        '{"features": ' + "[" * 100_000,
        '{"features": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"rows": ' + '{"a": ' * 100_000,
        "[]",
        "null",
        "",
        "{",
        "\x00",
        '{"features": [[1, 2, 3, 4]], "max_steps": ' + "9" * 100_000 + "}",
        json.dumps({"features": [[0.0] * 4] * 65}),
    ],
)
def test_numbers_that_are_none(numbers_client: httpx.Client, body: str) -> None:
    headers = {"content-type": "application/json"}
    response = numbers_client.post("/v1/predict", content=body.encode(), headers=headers)
    refused(response, 413 if body.endswith("0.0]]}") else 422)
    assert numbers_client.get("/healthz").json()["status"] == "ok"


def test_files_that_are_no_images(client: httpx.Client, inputs: torch.Tensor) -> None:
    whole = png(np.random.default_rng(0).integers(0, 255, (60, 60), dtype=np.uint8))
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("zeros", bytes(20_000_000))
    swollen = png_that_claims(8, 8, zlib.compress(bytes(20_000_000), 9))
    for content in (whole[: len(whole) // 2], whole[:20], archive.getvalue(), b"", b"GIF89a", png_that_claims(8, 8)):
        assert "0.png is no image" in refused(post(client, content), 422)
    assert post(client, swollen).status_code in (200, 422)  # what is beyond the header's pixels is never unpacked
    assert "%!PS" not in refused(post(client, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), 422)
    assert "no image; send one" in refused(client.post("/v1/predict", files={"trace": (None, "true")}), 422)
    assert refused(post(client, png(inputs[0, 0]), b"junk"), 422).startswith("1.png")


def test_images_that_are_too_large(client: httpx.Client) -> None:
    for width, height in ((50_000, 50_000), (2**31 - 1, 1), (12_000, 12_000), (1001, 1000)):
        sentence = refused(post(client, png_that_claims(width, height)), 413)
        assert "0.png is too large" in sentence
        assert "at most 1 megapixels" in sentence
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


def test_bodies_that_are_too_large(client: httpx.Client) -> None:
    megabyte = bytes(1_000_000)

    def pieces() -> Iterator[bytes]:
        yield b'--x\r\ncontent-disposition: form-data; name="images"; filename="a.png"\r\n\r\n'
        for _ in range(20):
            yield megabyte

    form = {"content-type": "multipart/form-data; boundary=x"}
    assert "1 MB" in refused(client.post("/v1/predict", content=megabyte * 100, headers=form), 413)
    assert "1 MB" in refused(client.post("/v1/predict", content=pieces(), headers=form), 413)
    as_json = {"content-type": "application/json"}
    assert "1 MB" in refused(client.post("/v1/predict", content=pieces(), headers=as_json), 413)


def test_bodies_of_the_wrong_kind(client: httpx.Client) -> None:
    for kind in ("text/plain", "image/png", "application/x-www-form-urlencoded", "nonsense", ""):
        response = client.post("/v1/predict", content=b"x=1", headers={"content-type": kind})
        assert "multipart/form-data" in refused(response, 415)
    assert "compressed" in refused(client.post("/v1/predict", content=b"x", headers={"content-encoding": "gzip"}), 415)
    for kind in ("multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=x"):
        refused(client.post("/v1/predict", content=b"--y\r\nnothing", headers={"content-type": kind}), 422)


def test_what_is_not_there(client: httpx.Client) -> None:
    assert "/nothing" in refused(client.get("/nothing"), 404)
    assert "/v1/predict is not asked by GET" in refused(client.get("/v1/predict"), 405)
    assert "/v1/examples/999" not in refused(client.get("/v1/examples/999.png"), 404)
    assert "no example" in refused(client.get("/v1/examples/999.png"), 404)
    assert "no example" in refused(client.get(f"/v1/examples/{'9' * 5000}.png"), 404)
    for path in ("/page/../application.py", "/page/%2e%2e/application.py", "/page/..%2fapplication.py"):
        assert client.get(path).status_code == 404


def test_who_is_not_served_elsewhere(client: httpx.Client) -> None:
    """No other site may read answers, or show the page in a frame of its own."""
    response = client.get("/", headers={"origin": "https://elsewhere.example"})
    assert not [name for name in response.headers if name.startswith("access-control")]
    assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
    assert response.headers["x-content-type-options"] == "nosniff"


def open_request(client: httpx.Client, length: int, body: bytes = b"") -> socket.socket:
    """A request of which only the beginning is sent."""
    line = socket.create_connection((client.base_url.host, client.base_url.port or 0), timeout=10)
    fields = {"host": "localhost", "content-type": "application/json", "content-length": length}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    line.sendall(f"POST /v1/predict HTTP/1.1\r\n{head}\r\n".encode() + body)
    for _ in range(2):
        client.get("/healthz")  # by now the server has seen it
    return line


def test_a_full_house_and_a_stalled_guest(features: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.8)
    with serving(features, max_waiting=1) as client, open_request(client, 50) as stalled:
        response = client.post("/v1/predict", json={"features": [1, 2, 3, 4]})
        assert "try again" in refused(response, 429)
        assert response.headers["retry-after"] == "1"
        assert client.get("/healthz").status_code == 200
        assert b"408" in stalled.recv(4096)
        assert client.post("/v1/predict", json={"features": [1, 2, 3, 4]}).status_code == 200


def test_who_is_refused_takes_up_no_place(features: Classifier) -> None:
    """Their bodies are still awaited, for seconds, when others come."""

    def status() -> int:
        return client.post("/v1/predict", json={"features": [1, 2, 3, 4]}).status_code

    with serving(features, max_waiting=1, max_body_mb=0.001) as client, open_request(client, 2000, b"{"):
        assert status() == 200
        open_request(client, 50, b"{").close()  # who hangs up is forgotten
        assert 200 in (status() for _ in range(200))
        with open_request(client, 50, b"{") as guest, open_request(client, 50, b"{"):
            assert status() == 429
            guest.close()
            assert 200 in (status() for _ in range(200))


def test_our_own_failures_go_to_the_log(
    features: Classifier, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(responses, "answers", fail)
    with caplog.at_level(logging.INFO, "ricnet.server"), serving(features) as client:
        response = client.post("/v1/predict", json={"features": [1, 2, 3, 4]})
    sentence = refused(response, 500)
    assert "secret" not in response.text
    assert response.headers["x-request-id"] in sentence
    assert "ZeroDivisionError: secret" in caplog.text
    assert f"{response.headers['x-request-id']} POST /v1/predict 500" in caplog.text


def test_the_log_is_one_line_a_request(client: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ricnet.server"):
        response = client.get("/v1%0a%0dmodel\u00e9")
        client.get("/healthz")
    lines = [
        record.getMessage() for record in caplog.records if response.headers["x-request-id"] in record.getMessage()
    ]
    assert len(lines) == 1
    assert "GET /v1%0a%0dmodel%C3%A9 404" in lines[0]


def test_what_the_model_is(client: httpx.Client, digits_run: Path) -> None:
    model = client.get("/v1/model").json()
    assert model["name"] == "tested"
    assert model["method"] in ALGORITHMS
    assert model["data"] == "digits"
    assert model["classes"] == [str(k) for k in range(10)]
    assert model["input"] == {"kind": "image", "shape": [1, 8, 8], "columns": None}
    assert model["horizon"] == 4
    assert model["limits"]["max_batch"] == 8
    assert model["test"]["accuracy"] == json.loads((digits_run / "evaluation.json").read_text())["test"]["accuracy"]
    assert str(digits_run.parent) not in json.dumps(model)


def test_examples_come_back_as_they_were(client: httpx.Client, digits_run: Path, inputs: torch.Tensor) -> None:
    stored = np.load(digits_run / "examples.npz")
    listed = client.get("/v1/examples").json()
    assert [entry["label"] for entry in listed] == [str(k) for k in stored["y"]]
    assert {entry["kind"] for entry in listed} <= {"easy", "hard", "wrong", "confused"}
    for entry, pixels in zip(listed, inputs, strict=True):
        image = Image.open(io.BytesIO(client.get(entry["image"]).content))
        assert np.array_equal(np.asarray(image), pixels[0])


def test_the_model_may_come_alone_or_with_a_file_of_strangers(features: Classifier, tmp_path: Path) -> None:
    """Without examples, and without what was measured of it, or with numbers that are none."""
    alone, file = replace(features, folder=tmp_path), tmp_path / "evaluation.json"
    with serving(alone) as client:
        assert client.get("/v1/examples").json() == []
        assert client.get("/v1/model").json()["test"] is None
    file.write_text('{"test": {"n": 3, "accuracy": "high", "ece": 0.1, "mean_steps": []}}')
    assert describe(alone, "tested", Limits())["test"] is None
    file.write_text('{"test": {"n": 3, "accuracy": NaN, "ece": 0.1, "mean_steps": 2}}')
    with refusal("evaluation.json", "NaN"):
        describe(alone, "tested", Limits())


def test_openapi_tells_what_there_is(client: httpx.Client) -> None:
    spec = client.get("/openapi.json").json()
    assert set(spec["paths"]) == {"/v1/predict", "/v1/model", "/v1/examples", "/healthz"}
    route = spec["paths"]["/v1/predict"]["post"]
    assert set(route["requestBody"]["content"]) == {"multipart/form-data", "application/json"}
    assert {"200", "413", "415", "422", "429"} <= set(route["responses"])


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


def test_requests_that_arrive_together_are_counted(numbers_client: httpx.Client) -> None:
    before = numbers_client.get("/healthz").json()
    numbers_client.post("/v1/predict", json={"features": [[1, 2, 3, 4]] * 5})
    after = numbers_client.get("/healthz").json()
    assert (after["requests"] - before["requests"], after["inputs"] - before["inputs"]) == (1, 5)
    assert after["model_seconds"] > before["model_seconds"]


def test_answers_go_out_at_once() -> None:
    """Small packets are not held back, on the connections as asyncio makes them of what listens."""
    held_back: list[bool] = []

    async def meet() -> None:
        async def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            line = writer.get_extra_info("socket")
            held_back.append(not line.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with listen("127.0.0.1", 0) as listening:
            async with await asyncio.start_server(note, sock=listening):
                reader, writer = await asyncio.open_connection(*listening.getsockname())
                await reader.read()
                writer.close()
                await writer.wait_closed()

    asyncio.run(meet())
    assert held_back == [False]


def test_addresses_are_such_as_a_browser_takes() -> None:
    with listen("127.0.0.1", 0) as listening:
        assert address_of(listening) == f"http://127.0.0.1:{listening.getsockname()[1]}"
    with listen("0.0.0.0", 0) as listening:
        assert address_of(listening).startswith("http://127.0.0.1:")


@pytest.mark.parametrize("host", ["nowhere.invalid", "a..b", "x" * 70, "\ud800"])
def test_a_host_that_is_none_is_one_sentence(host: str) -> None:
    with refusal("--host"):
        listen(host, 0)
