"""Images that are small files and large work: they are refused, bounded, or wait by themselves."""

import asyncio
import io
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from PIL import Image
from starlette.requests import ClientDisconnect

from ricnet.apps.server import decoding
from ricnet.apps.server.decoding import Decoders
from ricnet.apps.server.limits import Limits, Refusal
from ricnet.apps.server.requests import Asked, File
from ricnet.data.images import decode_image
from ricnet.models.classifier import Classifier

from .conftest import serving
from .test_connections import limited

SHAPE = (1, 8, 8)


def image(width: int, height: int, form: str = "png", mode: str = "L", **more: Any) -> bytes:
    with io.BytesIO() as file:
        Image.new(mode, (width, height)).save(file, form, **more)
        return file.getvalue()


def decode(*contents: bytes, limits: Limits | None = None, shape: tuple[int, ...] = SHAPE) -> Asked:
    async def gone() -> bool:
        return False

    decoders = Decoders(shape, (limits or Limits()).of_input(shape))
    files = [File(f"{i}.png", content) for i, content in enumerate(contents)]
    try:
        return asyncio.run(decoders.decode(files, gone))
    finally:
        decoders.close()


def test_the_limit_on_pixels_follows_from_the_model() -> None:
    def most(side: int) -> float | None:
        return Limits().of_input((3, side, side)).max_megapixels

    assert [most(side) for side in (8, 32, 187, 224, 512)] == [9, 9, 9, pytest.approx(12.845, abs=1e-3), 16]
    assert Limits(max_megapixels=50.0).of_input((3, 32, 32)).pixels == 50_000_000


def test_large_images_are_refused_by_their_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "decode_image", None)
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
    monkeypatch.setattr(decoding, "DECODE_SECONDS", 0.3)
    content = many_scans(4000)
    began = time.perf_counter()
    with pytest.raises(Refusal, match=r"0.png takes longer than 0.3 seconds to decode") as found:
        decode(content)
    assert found.value.status == 413
    assert time.perf_counter() - began < 3


def test_what_is_being_decoded_ends_with_the_server() -> None:
    decoders = Decoders(SHAPE, Limits())
    decoders.close()
    with pytest.raises(Refusal):
        decoders._decode(File("a.png", image(8, 8)))


def test_nobody_decodes_for_clients_who_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone() -> bool:
        return True

    monkeypatch.setattr(decoding, "decode_image", None)
    with pytest.raises(ClientDisconnect):
        asyncio.run(Decoders(SHAPE, Limits()).decode([File("a.png", image(8, 8))], gone))


def test_small_images_do_not_wait_for_large_ones(digits: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, entered = threading.Event(), threading.Event()

    def held(file: Any, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name == "large.png":
            entered.set()
            assert gate.wait(20)
        return decode_image(file, name, shape)

    monkeypatch.setattr(decoding, "decode_image", held)
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
        slowest = 0.0
        while not all(one.done() for one in waiting):
            began = time.perf_counter()
            assert ask(client, small, "small.png")() == 200
            slowest = max(slowest, time.perf_counter() - began)
        assert [one.result() for one in waiting] == [200] * 4
        assert slowest < 2
        assert memory(process.pid, "VmHWM") < before + 350
        assert memory(process.pid, "VmRSS") < before + 100
