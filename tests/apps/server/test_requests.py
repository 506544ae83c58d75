"""Bodies of requests: fields, inputs, refusals, and small image files that are expensive to decode."""

import asyncio
import base64
import io
import json
import threading
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from starlette.requests import ClientDisconnect

from ricnet.apps.server import requests
from ricnet.apps.server.limits import Limits, Refusal
from ricnet.apps.server.requests import Ask, Decoders, File, Options, RequestInputs, parse, read_json
from ricnet.data.columns import Category, Columns, Number
from ricnet.data.images import decode_image
from ricnet.data.tables import Table
from ricnet.models.classifier import Classifier

from .asking import beliefs, png, post, refused
from .conftest import serving
from .test_connections import limited

SHAPE = (1, 8, 8)


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ('{"features": [[1, 2], [1, null]]}', "features[1][1] "),
        ('{"features": [1, "a"]}', "features[1] "),
        ('{"features": [[1, NaN]]}', "features[0][1] "),
        ('{"rows": [{}, 1]}', "rows[1] "),
        ('{"images": ["a", 5]}', "images[1] "),
        ('{"max_steps": 0}', "max_steps "),
        ('{"max_step": 1}', "there is no field 'max_step'; see /docs"),
        ("[]", "the body is not a JSON object; see /docs "),
        ("{", "the body is not valid JSON ("),
    ],
)
def test_errors_name_fields_as_in_the_request(body: str, place: str) -> None:
    with pytest.raises(Refusal) as refusal:
        parse(Ask, body.encode())
    assert refusal.value.status == 422
    assert str(refusal.value).startswith(place)
    assert "\n" not in str(refusal.value)


def test_a_form_takes_options_alone() -> None:
    found = parse(Options, {"max_steps": "3", "max_ms": "2.5", "top": "2", "trace": "true"})
    assert (found.max_steps, found.max_ms, found.top, found.trace) == (3, 2.5, 2, True)
    with pytest.raises(Refusal, match="images is a text here; send files"):
        parse(Options, {"images": "photo.jpg"})


@pytest.mark.parametrize(
    "body",
    [
        b'{"features": [' + b'"a",' * 50_000 + b"1]}",
        b'{"features": [' + b'["a"],' * 30_000 + b"[1]]}",
        b'{"rows": [' + b"1," * 20_000 + b"{}]}",
        b'{"images": [' + b"1," * 100_000 + b"1]}",
        b"{" + b",".join(b'"%d":1' % i for i in range(20_000)) + b"}",
    ],
)
def test_a_hundred_thousand_mistakes_take_no_more_memory_than_one(body: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Refusal):
            parse(Ask, body)
        assert tracemalloc.get_traced_memory()[1] < 40 * len(body)
    finally:
        tracemalloc.stop()


def test_a_bare_row_is_answered_with_the_form_to_send(
    client: httpx.Client, numbers_client: httpx.Client, table_client: httpx.Client
) -> None:
    rows = '{"rows": [{"weight": 0, "colour": "blue"}]}'
    for asked, body, form in (
        (numbers_client, [1, 2, 3, 4], '{"features": [[0, 0, 0, 0]]}'),
        (numbers_client, [[1, 2, 3, 4]], '{"features": [[0, 0, 0, 0]]}'),
        (numbers_client, {"a": 1}, '{"features": [[0, 0, 0, 0]]}'),
        (table_client, {"weight": 140, "colour": "red"}, rows),
        (table_client, [{"weight": 140, "colour": "red"}], rows),
        (client, "AAAA", '{"images": ["…"]} with files in base64'),
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


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"images": [base64.b64encode(png(np.zeros((8, 8), np.uint8))).decode(), "§"]}, "images[1] is not in base64"),
        ({"features": [1, 2]}, 'reads no features; send {"images"'),
        ({}, "one of features"),
        ({"images": []}, "has no image"),
    ],
    ids=["no base64", "features", "nothing", "no images"],
)
def test_json_without_readable_images_is_refused(client: httpx.Client, body: dict[str, object], named: str) -> None:
    assert named in refused(client.post("/v1/predict", json=body), 422)


def test_features_in_json(numbers_client: httpx.Client, features: Classifier) -> None:
    rows = torch.tensor([[0.5, 0.1, -0.3, 0.2], [2.0, 2.1, 1.9, 2.5]])
    path = features.refine(rows)
    for body, expected in (({"features": rows.tolist()}, path.final), ({"features": rows[0].tolist()}, path.final[:1])):
        said = numbers_client.post("/v1/predict", json=body | {"top": 99}).json()["predictions"]
        assert np.allclose([beliefs(answer, features) for answer in said], expected.exp(), atol=1e-5)
        assert [answer["input"] for answer in said] == ["features[0]", "features[1]"][: len(expected)]
    image, named = png(np.zeros((8, 8), np.uint8)), {"rows": {"a": 1}}
    for response in (post(numbers_client, image), numbers_client.post("/v1/predict", json=named)):
        assert 'send {"features": [[0, 0, 0, 0]]}' in refused(response, 422)


def test_rows_of_a_table_by_the_names_of_its_columns(table_client: httpx.Client, table: Classifier) -> None:
    assert table.columns is not None
    cells = Table("rows", {"weight": ["140", ""], "colour": ["red", "pink"]}, [1, 2])
    path = table.refine(table.columns.encode(cells))
    rows = [{"colour": "red", "weight": 140}, {"weight": None, "colour": "pink", "more": 1}]
    told = table_client.post("/v1/predict", json={"rows": rows, "top": 3}).json()
    said = told["predictions"]
    assert np.allclose([beliefs(answer, table) for answer in said], path.final.exp(), atol=1e-5)
    assert [answer["input"] for answer in said] == ["rows[0]", "rows[1]"]
    ignored, note = told["notes"]
    assert ignored == "The model does not read 'more'."
    assert "1 of 2 rows have a value of 'colour' that no training row had, such as 'pink'" in note
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
def test_errors_name_the_row(table_client: httpx.Client, row: dict[str, Any], named: str) -> None:
    body = json.dumps({"rows": [{"colour": "red", "weight": 140}, row]})  # httpx refuses NaN itself
    asked = table_client.post("/v1/predict", content=body, headers={"content-type": "application/json"})
    sentence = refused(asked, 422)
    assert sentence.startswith("rows[1]")
    assert named in sentence


def test_columns_that_the_model_does_not_read_may_hold_anything(table_client: httpx.Client) -> None:
    body = '{"rows": {"colour": "red", "weight": 140, "more": NaN, "other": [true]}}'
    found = table_client.post("/v1/predict", content=body, headers={"content-type": "application/json"})
    assert found.status_code == 200


@pytest.mark.parametrize(("no", "yes"), [("false", "true"), ("False", "True"), ("No", "yes"), ("n", "y")])
def test_true_and_false_are_spelled_as_in_training(table: Classifier, no: str, yes: str) -> None:
    columns = Columns("fruit", (Category("ripe", (no, yes), True), Number("weight", 0.0, 1.0, False)))
    model = replace(table, columns=columns)
    body = json.dumps({"rows": [{"ripe": ripe, "weight": 1} for ripe in (False, True)]}).encode()
    assert read_json(body, model, Limits())[0].inputs.tolist() == [[1, 0, 0, 1], [0, 1, 0, 1]]
    with pytest.raises(Refusal, match=r"rows\[0\]: 'weight'"):
        read_json(b'{"rows": {"ripe": true, "weight": true}}', model, Limits())


def test_rows_are_read_by_column_name(table_client: httpx.Client, table: Classifier) -> None:
    """Of bare numbers, 140 for a weight would be taken as 140 deviations from the mean."""
    csv = {"images": ("fruit.csv", b"weight,colour\n140,red\n", "text/csv")}
    form = 'send {"rows": [{"weight": 0, "colour": "blue"}]}'
    assert form in refused(table_client.post("/v1/predict", files=csv), 422)
    for features in ([140.0] * table.input_shape[0], [[140.0] * table.input_shape[0]], [140, 1], []):
        sentence = refused(table_client.post("/v1/predict", json={"features": features}), 422)
        assert form in sentence
    assert "no row" in refused(table_client.post("/v1/predict", json={"rows": []}), 422)


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


# Images


def image(width: int, height: int, form: str = "png", mode: str = "L", **more: Any) -> bytes:
    with io.BytesIO() as file:
        Image.new(mode, (width, height)).save(file, form, **more)
        return file.getvalue()


def decode(*contents: bytes, limits: Limits | None = None, shape: tuple[int, ...] = SHAPE) -> RequestInputs:
    async def gone() -> bool:
        return False

    decoders = Decoders(shape, (limits or Limits()).of_input(shape))
    files = [File(f"{i}.png", content) for i, content in enumerate(contents)]
    try:
        return asyncio.run(decoders.decode(files, gone))
    finally:
        decoders.close()


def test_large_images_are_refused_by_their_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "decode_image", None)
    bomb = image(7000, 7000)
    assert len(bomb) < 190_000
    for content in (bomb, image(3001, 3000), image(7000, 7000, "jpeg"), image(5300, 5300, "jpeg", progressive=True)):
        with pytest.raises(Refusal, match=r"0.png is too large: .* at most 9 megapixels; make it smaller") as found:
            decode(content)
        assert found.value.status == 413
    with pytest.raises(Refusal, match="too large"):
        decode(bomb, limits=Limits(max_megapixels=48.0))
    with pytest.raises(Refusal, match=r"4.png and the images before it .* 36 megapixels together"):
        decode(*[image(3000, 3000)] * 5)


def test_photographs_of_a_telephone_are_taken() -> None:
    photo = image(5712, 4284, "jpeg", "RGB")
    found = decode(photo, image(3000, 3000)).inputs
    assert torch.equal(found[0], decode_image(io.BytesIO(photo), "photo", SHAPE))
    assert found.shape == (2, 1, 8, 8)


def many_scans(scans: int) -> bytes:
    """A progressive JPEG whose last scan is there many times: 4,000 of them are 121 kB, and take ten seconds."""
    whole = image(2900, 2900, "jpeg", progressive=True)
    last = whole.rindex(b"\xff\xda")
    return whole[:-2] + whole[last:-2] * scans + whole[-2:]


def test_a_jpeg_of_many_scans_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "DECODE_SECONDS", 0.3)
    content = many_scans(4000)
    began = time.perf_counter()
    with pytest.raises(Refusal, match=r"0.png takes longer than 0.3 seconds to decode") as found:
        decode(content)
    assert found.value.status == 413
    assert time.perf_counter() - began < 8


def test_decoding_ends_with_the_server() -> None:
    decoders = Decoders(SHAPE, Limits())
    decoders.close()
    with pytest.raises(Refusal):
        decoders._decode(File("a.png", image(8, 8)))


def test_images_of_disconnected_clients_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone() -> bool:
        return True

    monkeypatch.setattr(requests, "decode_image", None)
    with pytest.raises(ClientDisconnect):
        asyncio.run(Decoders(SHAPE, Limits()).decode([File("a.png", image(8, 8))], gone))


def test_small_images_do_not_wait_for_large_ones(digits: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, entered = threading.Event(), threading.Event()

    def held(file: Any, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name == "large.png":
            entered.set()
            assert gate.wait(20)
        return decode_image(file, name, shape)

    monkeypatch.setattr(requests, "decode_image", held)
    with serving(digits) as client, ThreadPoolExecutor(8) as clients:
        try:
            large = image(1100, 1100)
            waiting = [clients.submit(ask(client, large, "large.png")) for _ in range(8)]
            assert entered.wait(10)
            assert ask(client, image(8, 8), "small.png")() == 200
            assert client.get("/healthz").status_code == 200
            assert not any(one.done() for one in waiting)
        finally:
            gate.set()
        assert [one.result() for one in waiting] == [200] * 8


def ask(client: httpx.Client, content: bytes, name: str) -> Callable[[], int]:
    return lambda: client.post("/v1/predict", files={"images": (name, content)}).status_code


def memory(process: int, what: str) -> float:
    """In megabytes."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) / 1000
    raise AssertionError(what)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="counts memory as Linux shows it")
def test_memory_for_large_images_is_bounded_and_returned(digits_run: Path, tmp_path: Path) -> None:
    largest, small = image(3000, 3000, mode="RGBA"), image(8, 8)
    arguments = ("serve", digits_run, "--port", "0", "--device", "cpu")
    with (
        limited(512, tmp_path / "log", *arguments) as (process, address),
        httpx.Client(base_url=address, timeout=60, trust_env=False) as client,
        ThreadPoolExecutor(8) as clients,
    ):
        ask(client, small, "small.png")()
        before = memory(process.pid, "VmRSS")
        waiting = [clients.submit(ask(client, largest, "large.png")) for _ in range(4)]
        slowest, start = 0.0, time.perf_counter()
        while not all(one.done() for one in waiting):
            began = time.perf_counter()
            assert ask(client, small, "small.png")() == 200
            slowest = max(slowest, time.perf_counter() - began)
        assert [one.result() for one in waiting] == [200] * 4
        assert slowest < max(2, 0.5 * (time.perf_counter() - start)), "small images wait for large ones"
        assert memory(process.pid, "VmHWM") < before + 350
        assert memory(process.pid, "VmRSS") < before + 100


def test_fields_of_a_row_that_the_model_does_not_read_are_named(table_client: httpx.Client) -> None:
    """A misspelt name also where the right one is missing; the class of a row may be there."""
    row = {"weight": 40, "colour": "blue", "fruit": "plum"}
    said = table_client.post("/v1/predict", json={"rows": [row, row | {"wieght": 1, "size": None}]}).json()
    assert said["notes"] == ["The model does not read 'wieght', 'size'."]
    assert table_client.post("/v1/predict", json={"rows": row}).json()["notes"] == []
    sentence = refused(table_client.post("/v1/predict", json={"rows": {"wieght": 1, "colour": "red"}}), 422)
    assert "rows[0] lacks 'weight'" in sentence
    assert sentence.endswith("The model does not read 'wieght'.")
