"""Host names the server answers for. A web site can make its own name resolve to this machine (DNS rebinding) and read
answers; its requests carry that name in the Host header and are refused. IP addresses cannot be rebound."""

import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from ricnet.errors import RicnetError, setting

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_HEADER = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[^\s:/\[\]@]+))(?::\d{0,5})?", re.ASCII)
_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.ASCII)


@dataclass(frozen=True)
class Hosts:
    names: frozenset[str] = LOOPBACK
    any_address: bool = False
    """Whether any IP address is allowed: a machine does not know all addresses it is reached by."""

    def allows(self, header: str | None) -> bool:
        """Whether a Host header is allowed. Only HTTP 1.0 clients send none, and browsers always send one."""
        if header is None:
            return True
        found = _HEADER.fullmatch(header.strip().lower())
        if found is None:
            return False
        name = found["v6"] or found["name"].removesuffix(".")
        return name in self.names or (self.any_address and _is_address(name))


def allowed_hosts(listening: socket.socket, host: str = "", others: Iterable[str] = ()) -> Hosts:
    """Loopback names, `host` as the user gave it, the address of the socket, and `others`. If the socket listens on all
    addresses, also any IP address and this machine's own name."""
    address = str(listening.getsockname()[0])
    names = LOOPBACK | {address, host.lower()} | {_checked(name) for name in others}
    if not ipaddress.ip_address(address).is_unspecified:
        return Hosts(names - {""})
    own = socket.gethostname().lower()
    return Hosts(names - {""} | {own, f"{own.partition('.')[0]}.local"}, any_address=True)


def _checked(name: str) -> str:
    lower = name.lower().removesuffix(".").removeprefix("[").removesuffix("]")
    if not (_NAME.fullmatch(lower) or _is_address(lower)):
        raise RicnetError(f"{setting('allow_host', name)} is not a host name; give it without http:// and port.")
    return lower


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
