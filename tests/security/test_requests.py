"""Arbitrary requests to the server get an answer or the right status."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import strategies as st
from PIL import Image
from starlette.testclient import TestClient

import ricnet
from ricnet.apps.server.application import build
from ricnet.apps.server.limits import Limits

from .attack import TEXTS, altered, attack, briefly_and_long, mutated

# The server's own thread may use `random` while hypothesis draws.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module")

KINDS = st.sampled_from(
    ["application/json", "multipart/form-data; boundary=x", "multipart/form-data", "text/plain", ""]
)


@contextmanager
def serving(run: Path) -> Iterator[TestClient]:
    application = build(ricnet.load(run), "it", Limits(max_body_mb=1.0))
    with TestClient(application, "http://localhost", raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def tables(table_run: Path) -> Iterator[TestClient]:
    with serving(table_run) as client:
        yield client


@pytest.fixture
def images(image_run: Path) -> Iterator[TestClient]:
    with serving(image_run) as client:
        yield client


def check(client: TestClient, content: bytes, kind: str) -> None:
    response = client.post("/v1/predict", content=content, headers={"content-type": kind})
    assert response.status_code == 200 or 400 <= response.status_code < 500, response.text
    body = response.json()
    assert "predictions" in body or body["error"].endswith("."), body


@briefly_and_long
def test_requests_about_rows(tables: TestClient, seconds: float | None) -> None:
    whole = {"rows": [{"size": 1, "colour": "red"}, {"size": "", "colour": None}], "max_steps": 2, "trace": True}

    def strike(data: st.DataObject) -> None:
        entry = data.draw(altered(whole) | altered({"features": [[0.5] * 4], "max_ms": 5.0}))
        text = json.dumps(entry).encode()
        check(tables, data.draw(mutated(text)) if data.draw(st.booleans()) else text, data.draw(KINDS))

    attack(strike, seconds)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # starlette leaves a broken part open
@briefly_and_long
def test_requests_about_images(images: TestClient, seconds: float | None) -> None:
    with io.BytesIO() as file:
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(file, "png")
        part = b'--x\r\ncontent-disposition: form-data; name="images"; filename="a.png"\r\n\r\n' + file.getvalue()
    body = part + b'\r\n--x\r\ncontent-disposition: form-data; name="trace"\r\n\r\ntrue\r\n--x--\r\n'

    def strike(data: st.DataObject) -> None:
        check(images, data.draw(mutated(body)), "multipart/form-data; boundary=x")

    attack(strike, seconds)


@briefly_and_long
def test_addresses(tables: TestClient, seconds: float | None) -> None:
    parts = (
        st.sampled_from(["v1", "page", "examples", "model", "..", "%2e%2e", "%00", "0.png", "999.png", "docs"]) | TEXTS
    )

    def strike(data: st.DataObject) -> None:
        text = quote("/".join(data.draw(st.lists(parts, max_size=4))), safe="/%", errors="replace")
        response = tables.request(
            data.draw(st.sampled_from(["GET", "POST", "PUT", "HEAD"])), f"/{text}".replace("//", "/")
        )
        assert response.status_code < 500
        assert "root:" not in response.text

    attack(strike, seconds)


def test_the_header_of_a_request_is_not_trusted(tables: TestClient) -> None:
    for length in ("-1", "9" * 30):
        response = tables.post("/v1/predict", content=b"{}", headers={"content-length": length})
        assert 400 <= response.status_code < 500
