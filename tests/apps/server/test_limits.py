"""Limits of a server, and the host names it answers for (DNS rebinding)."""

import socket

import httpx
import pytest

from refusals import refusal
from ricnet.apps.server.connections import listen
from ricnet.apps.server.limits import LOOPBACK, Hosts, Limits, allowed_hosts


def test_the_limit_on_pixels_follows_from_the_model() -> None:
    def most(side: int) -> float | None:
        return Limits().of_input((3, side, side)).max_megapixels

    assert [most(side) for side in (8, 32, 187, 224, 512)] == [9, 9, 9, pytest.approx(12.845, abs=1e-3), 16]
    assert Limits(max_megapixels=50.0).of_input((3, 32, 32)).pixels == 50_000_000


@pytest.mark.parametrize("path", ["/", "/docs", "/v1/examples", "/v1/model", "/healthz", "/page/page.js"])
def test_other_names_are_refused(client: httpx.Client, path: str) -> None:
    for host in ("evil.example", "evil.example:8000", "localhost.evil.example", "10.0.0.1", "x;rm -rf /", "<script>"):
        response = client.get(path, headers={"host": host})
        assert response.status_code == 421
        sentence = response.json()["error"]
        assert "--allow-host" in sentence
        assert repr(host) in sentence
    for host in ("localhost", "LOCALHOST:99", "127.0.0.1", "[::1]:8000", "localhost."):
        assert client.get(path, headers={"host": host}).status_code == 200


def test_predictions_for_other_names_are_refused(client: httpx.Client) -> None:
    asked = client.post("/v1/predict", json={"images": ["AAAA"]}, headers={"host": "evil.example"})
    assert asked.status_code == 421


def test_names_that_are_allowed() -> None:
    with listen("127.0.0.1", 0) as listening:
        assert allowed_hosts(listening).names == LOOPBACK
        found = allowed_hosts(listening, "127.0.0.1", ["Models.Example.org", "10.1.2.3"])
    assert found.allows("models.example.org:443")
    assert found.allows("10.1.2.3")
    assert not found.allows("example.org")
    assert not found.allows("10.1.2.4")
    assert found.allows(None)
    with listen("127.0.0.9", 0) as listening:
        assert allowed_hosts(listening, "127.0.0.9").allows("127.0.0.9:8000")
    for name in ("http://x", "x:8000", "", "a b", "x/y", "*"):
        with listen("127.0.0.1", 0) as listening, refusal("allow_host"):
            allowed_hosts(listening, "127.0.0.1", [name])


def test_on_every_address_any_address_is_allowed_but_no_other_name() -> None:
    with listen("0.0.0.0", 0) as listening:
        found = allowed_hosts(listening, "0.0.0.0")
    for host in ("192.168.1.7:8000", "[fe80::1]:8000", "localhost", socket.gethostname()):
        assert found.allows(host)
    for host in ("evil.example", "1.2.3.4.evil.example", "", ":80", "a@b", "[x]", "192.168.1.7:8000/"):
        assert not found.allows(host)
    assert not Hosts().allows("192.168.1.7")
