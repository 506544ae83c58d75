"""Requests to the server and checks of its responses, for the tests."""

import io
import socket
import struct
import zlib
from typing import Any

import httpx
import numpy as np
import torch
from PIL import Image

from ricnet.models.classifier import Classifier


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


def open_request(client: httpx.Client, length: int, body: bytes = b"") -> socket.socket:
    """A request of which only the beginning is sent."""
    line = socket.create_connection((client.base_url.host, client.base_url.port or 0), timeout=10)
    fields = {"host": "localhost", "content-type": "application/json", "content-length": length}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    line.sendall(f"POST /v1/predict HTTP/1.1\r\n{head}\r\n".encode() + body)
    for _ in range(2):
        client.get("/healthz")  # by now the server has seen it
    return line
