"""Which names the server answers for.

A page on another site can have its own name resolve to this machine (DNS rebinding) and then read what the server
answers. Its requests still carry that name in their Host header, so requests for unknown names are refused. An IP
address cannot be rebound.
"""

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
    """Whether any IP address is allowed: the addresses of this machine are not all known to it."""

    def allows(self, header: str | None) -> bool:
        """Of a Host header. A client without one, by HTTP 1.0, is no browser."""
        if header is None:
            return True
        found = _HEADER.fullmatch(header.strip().lower())
        if found is None:
            return False
        name = found["v6"] or found["name"].removesuffix(".")
        return name in self.names or (self.any_address and _is_address(name))


def allowed_hosts(listening: socket.socket, host: str = "", others: Iterable[str] = ()) -> Hosts:
    """Loopback names, the address listened on as it was given and as it was found, and `others`. Where every address is
    listened on, any IP address and this machine's own name."""
    address = str(listening.getsockname()[0])
    names = LOOPBACK | {address, host.lower()} | {_checked(name) for name in others}
    if not ipaddress.ip_address(address).is_unspecified:
        return Hosts(names - {""})
    own = socket.gethostname().lower()
    return Hosts(names - {""} | {own, f"{own.partition('.')[0]}.local"}, any_address=True)


def _checked(name: str) -> str:
    lower = name.lower().removesuffix(".").removeprefix("[").removesuffix("]")
    if not (_NAME.fullmatch(lower) or _is_address(lower)):
        raise RicnetError(f"{setting('allow_host', name)} is no host name; give it without http:// and port.")
    return lower


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
