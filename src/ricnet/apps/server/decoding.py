"""Decoding of images in requests, with limits on pixels, time and threads.

A small file can declare gigabytes of pixels, so the header is compared with the limit before anything is decoded. Large
images of all requests share one thread, in which requests take turns: a small image never waits for a large one.
"""

import asyncio
import contextlib
import ctypes
import io
import os
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from jaxtyping import UInt8
from PIL import Image
from starlette.requests import ClientDisconnect
from torch import Tensor

from ricnet.apps.server.limits import IMAGES_TOGETHER, Limits, Refusal
from ricnet.apps.server.requests import Asked, File
from ricnet.data.images import FORMATS, MOST_PIXELS, decode_image
from ricnet.errors import RicnetError
from ricnet.io import short

THREADS = min(2, os.cpu_count() or 1)
"""For images that are not large, and for JSON."""
LARGE = 1_000_000
"""Pixels beyond which an image is large. One million are decoded in about 0.05 s."""
DECODE_SECONDS = 5.0
"""Time limit for one image. A JPEG of thousands of scans can take minutes even if it has few pixels."""
SCAN_SHARE = 3
"""A JPEG decoded at reduced size counts as at least a third of its pixels: with several scans, its coefficients are
held in memory at full size."""
UNBOUNDED = 1 << 62

T = TypeVar("T")


class Decoders:
    """The threads that decode images and JSON, and the limits on images."""

    def __init__(self, input_shape: tuple[int, ...], limits: Limits) -> None:
        self._shape, self._most_pixels = input_shape, limits.pixels
        self._threads, self._large = ThreadPoolExecutor(THREADS, "decoder"), ThreadPoolExecutor(1, "large-decoder")
        self._closed = threading.Event()

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    async def decode(self, files: Sequence[File], gone: Callable[[], Awaitable[bool]]) -> Asked:
        """Decode one image after the other, unless the client has `gone`."""
        images = []
        for file, pixels in zip(files, await self.run(self._count_pixels, files), strict=True):
            if await gone():
                raise ClientDisconnect
            threads, decode = (self._large, self._decode_large) if pixels > LARGE else (self._threads, self._decode)
            images.append(await asyncio.get_running_loop().run_in_executor(threads, decode, file))
        return Asked([file.name for file in files], torch.stack(images))

    def close(self) -> None:
        """Interrupt images being decoded at their next read, and cancel those waiting."""
        self._closed.set()
        for threads in (self._threads, self._large):
            threads.shutdown(wait=False, cancel_futures=True)

    def _count_pixels(self, files: Sequence[File]) -> list[int]:
        """The number of pixels of each image, from its header; refuse images beyond the limits."""
        found: list[int] = []
        most, together = self._most_pixels, IMAGES_TOGETHER * self._most_pixels
        for file in files:
            found.append(_pixels_to_decode(file, self._shape))
            if found[-1] > most:
                takes = f"this server takes images of at most {most / 1e6:g} megapixels"
                raise Refusal(413, f"{_shown(file)} is too large: {takes}; make it smaller.")
            if sum(found) > together:
                more = f"have more than {together / 1e6:g} megapixels together"
                raise Refusal(413, f"{_shown(file)} and the images before it {more}; send fewer at once.")
        return found

    def _decode(self, file: File) -> UInt8[Tensor, "c h w"]:
        content = _Interruptible(file.content, self._closed)
        try:
            return decode_image(content, file.name, self._shape)
        except RicnetError as error:
            if not content.interrupted:
                raise _not_an_image(file) from error
            late = f"takes longer than {DECODE_SECONDS:g} seconds to decode"
            raise Refusal(413, f"{_shown(file)} {late}; save it as a PNG.") from None

    def _decode_large(self, file: File) -> UInt8[Tensor, "c h w"]:
        try:
            return self._decode(file)
        finally:  # glibc returns freed memory to the system; other C libraries have no malloc_trim
            with contextlib.suppress(OSError, TypeError, AttributeError):
                ctypes.CDLL(None).malloc_trim(0)


class _Interruptible(io.BytesIO):
    """A file whose reads fail after DECODE_SECONDS. Pillow reads in blocks, so this interrupts its decoding."""

    def __init__(self, content: bytes, closed: threading.Event) -> None:
        super().__init__(content)
        self._ends, self._closed = time.perf_counter() + DECODE_SECONDS, closed
        self.interrupted = False

    def read(self, size: int | None = -1) -> bytes:
        if time.perf_counter() > self._ends or self._closed.is_set():
            self.interrupted = True
            raise TimeoutError("decoding takes too long")
        return super().read(size)


def _pixels_to_decode(file: File, input_shape: tuple[int, ...]) -> int:
    """UNBOUNDED beyond MOST_PIXELS, so that every limit refuses it."""
    _, height, width = input_shape
    try:
        with Image.open(io.BytesIO(file.content), formats=FORMATS) as image:
            stored = image.width * image.height
            image.draft(image.mode, (2 * width, 2 * height))  # as decode_image does; it affects JPEGs only
            decoded = image.width * image.height
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return UNBOUNDED
    except Exception as error:  # decoders fail in many ways
        raise _not_an_image(file) from error
    if stored > MOST_PIXELS:
        return UNBOUNDED
    return decoded if decoded == stored else max(decoded, stored // SCAN_SHARE)


def _not_an_image(file: File) -> Refusal:
    formats = "PNG, JPEG, WebP, GIF, BMP or TIFF"
    return Refusal(422, f"{_shown(file)} is not a readable image; send a complete {formats}.")


def _shown(file: File) -> str:
    return short(file.name.strip(), 60) or "the file"
