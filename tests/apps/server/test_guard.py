"""Limits on bodies and on requests in progress, headers, ids and the log."""

import logging
from collections.abc import Iterator

import httpx
import pytest

from ricnet.apps.server import guard, responses
from ricnet.models.classifier import Classifier

from .asking import open_request, refused
from .conftest import serving


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


def test_who_is_not_served_elsewhere(client: httpx.Client) -> None:
    """No other site may read answers, or show the page in a frame of its own."""
    response = client.get("/", headers={"origin": "https://elsewhere.example"})
    assert not [name for name in response.headers if name.startswith("access-control")]
    assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
    assert response.headers["x-content-type-options"] == "nosniff"


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
