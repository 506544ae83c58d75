"""Limits on the requests to a server and on the hosts it answers for, and the exception that refuses a request."""

import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ricnet.errors import RicnetError, require, require_finite, setting

PIXELS_PER_INPUT, LEAST_PIXELS, MOST_PIXELS = 256, 9_000_000, 16_000_000
"""Default limit on the pixels of an image: this multiple of the pixels that the model reads, within these bounds."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
HEADER = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[^\s:/\[\]@]+))(?::\d{0,5})?", re.ASCII)
NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.ASCII)


class Refusal(Exception):
    """A request that is refused: a status for programs, a sentence for people."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.headers = status, headers


@dataclass(frozen=True)
class Limits:
    max_body_mb: float = 16.0
    """Largest request in megabytes; a larger one is refused before it is read. Raise it for many photos at once."""
    max_megapixels: float | None = None
    """Maximum pixels of an image, by its header, in millions; the images of a request may have four times as many
    together. By default 256 times the pixels that the model reads, but at least 9 (a 4K screen has 8.3) and at most 16.
    A JPEG that is decoded at a reduced size counts a third of its pixels. Decoding takes up to 16 bytes of memory per
    pixel, however small the file is."""
    max_batch: int = 64
    """Maximum inputs in a request, and in a batch of the model. 1 turns batching off."""
    max_waiting: int = 128
    """Maximum requests in progress; further ones are refused with 429. Their bodies are in memory."""

    def __post_init__(self) -> None:
        require_finite(self)
        for name in ("max_body_mb", "max_megapixels"):
            value = getattr(self, name)
            require(value is None or value > 0, name, value, "above 0")
        for name in ("max_batch", "max_waiting"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")

    def of_input(self, shape: tuple[int, ...]) -> "Limits":
        """The limits with `max_megapixels` set for a model of this input shape, unless the user has set it."""
        if self.max_megapixels is not None or len(shape) != 3:
            return self
        pixels = max(LEAST_PIXELS, min(MOST_PIXELS, PIXELS_PER_INPUT * shape[1] * shape[2]))
        return replace(self, max_megapixels=pixels / 1e6)

    @property
    def pixels(self) -> int:
        """Maximum pixels of an image."""
        return LEAST_PIXELS if self.max_megapixels is None else round(self.max_megapixels * 1e6)


@dataclass(frozen=True)
class Hosts:
    """Host names the server answers for. A web site can make its own name resolve to this machine (DNS rebinding) and
    read answers; its requests carry that name in the Host header and are refused. IP addresses cannot be rebound."""

    names: frozenset[str] = LOOPBACK
    any_address: bool = False
    """Whether any IP address is allowed: a machine does not know all addresses it is reached by."""

    def allows(self, header: str | None) -> bool:
        """Whether a Host header is allowed. Only HTTP 1.0 clients send none, and browsers always send one."""
        if header is None:
            return True
        found = HEADER.fullmatch(header.strip().lower())
        if found is None:
            return False
        name = found["v6"] or found["name"].removesuffix(".")
        return name in self.names or (self.any_address and _is_address(name))


def allowed_hosts(listening: socket.socket, host: str = "", others: Iterable[str] = ()) -> Hosts:
    """Loopback names, `host` as the user gave it, the address of the socket, and `others`. If the socket listens on all
    addresses, also any IP address and this machine's own name."""
    address = str(listening.getsockname()[0])
    names = {*LOOPBACK, address, host.lower()} - {""}
    for name in others:
        lower = name.lower().removesuffix(".").removeprefix("[").removesuffix("]")
        if not (NAME.fullmatch(lower) or _is_address(lower)):
            raise RicnetError(f"{setting('allow_host', name)} is not a host name; give it without http:// and port.")
        names.add(lower)
    if not ipaddress.ip_address(address).is_unspecified:
        return Hosts(frozenset(names))
    own = socket.gethostname().lower()
    return Hosts(frozenset({*names, own, f"{own.partition('.')[0]}.local"}), any_address=True)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
