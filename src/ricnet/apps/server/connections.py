"""The listening socket, and limits on connections: their number, and the time a client may stay silent.

uvicorn has no timeout for incomplete headers and no limit on idle connections, and at shutdown it waits for stalled
clients. Each connection takes a file descriptor; when none are left, nobody can connect.
"""

import asyncio
import errno
import logging
import socket
import time
from pathlib import Path
from typing import Any, ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ricnet.errors import RicnetError, require

log = logging.getLogger("ricnet.server")

HEADER_SECONDS = 10.0
"""Time from the connection, or from the last answer, to the end of the next request's headers."""
KEEP_ALIVE_SECONDS = 5
"""Time from an answer to the first byte of the next request."""
STALLED_SECONDS = 3.0
"""At shutdown: time for the rest of a request to arrive, and for a client to read some of its answer."""
MOST_CONNECTIONS = 1000
ACCEPTED_AT_ONCE = 8
"""Connections that asyncio accepts in one turn of its loop, before it calls `connection_made` of the first."""
RESERVED = 64
"""File descriptors kept free of connections: for those accepted but not yet counted, and for files."""
BACKLOG = 512
"""Connections that the kernel holds until they are accepted."""
COMPLAINT_SECONDS = 10.0
"""Minimum time between two log lines about connections that could not be accepted."""
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def listen(host: str, port: int) -> socket.socket:
    """A socket that clients can connect to; they are answered once the server runs."""
    require(0 <= port <= 65535, "port", port, "from 0 to 65535")
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:  # UnicodeError: invalid names such as a..b
        reason = getattr(error, "strerror", None) or error
        advice = "choose another --port, or 0 for any that is free"
        raise RicnetError(f"--host {host} --port {port} cannot be listened on ({reason}); {advice}.") from error
    # The same socket, marked as TCP: asyncio turns off Nagle's algorithm only then. Otherwise the second half of a
    # response waits for the client to acknowledge the first, which takes 40 ms on Linux.
    return socket.socket(listening.family, listening.type, socket.IPPROTO_TCP, listening.detach())


def address_of(listening: socket.socket) -> str:
    """The address for a browser on this machine."""
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def most_connections() -> int:
    """The limit on open files minus those that are open or reserved; at most MOST_CONNECTIONS."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return MOST_CONNECTIONS
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(4, min(MOST_CONNECTIONS, limit - _open_files() - RESERVED))


def _open_files() -> int:
    try:
        return len(list(Path("/dev/fd").iterdir()))
    except OSError:  # some containers have no such folder
        return RESERVED


class Connection(H11Protocol):
    """Closed if no request arrives in time, or if the client does not read its answer.

    Beyond `most` connections, the one that has waited longest without a request is closed to let a new client in.
    """

    most: ClassVar[int] = MOST_CONNECTIONS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._timer: asyncio.TimerHandle | None = None
        self._period = HEADER_SECONDS
        self._ending = False
        super().connection_made(transport)
        self._wait_for_request()
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._wait_for_request()
        super().on_response_complete()

    def shutdown(self) -> None:
        """Answer requests that have arrived; close connections that stall for STALLED_SECONDS."""
        self._period, self._ending = STALLED_SECONDS, True
        super().shutdown()
        self._arm()

    @property
    def answering(self) -> bool:
        """Whether the headers of a request have arrived and its answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def arriving(self) -> bool:
        """Whether the headers or the body of a request are incomplete."""
        return not self.answering or self.cycle.more_body

    def _wait_for_request(self) -> None:
        self.waiting_since = time.monotonic()
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._unsent = self.transport.get_write_buffer_size()
        self._timer = self.loop.call_later(self._period, self._check)

    def _check(self) -> None:
        """Abort if the request is late, or if the client has read none of its answer since the last check."""
        unsent = self.transport.get_write_buffer_size()
        late = self.arriving if self._ending else not self.answering
        if (unsent >= self._unsent) if unsent else late:
            self.transport.abort()
        else:
            self._arm()

    def _make_room(self) -> None:
        if len(self.connections) <= self.most:
            return
        open_now = [one for one in self.connections if isinstance(one, Connection) and not one.transport.is_closing()]
        if len(open_now) <= self.most:
            return
        silent = [one for one in open_now if not one.answering]
        silent = silent if silent != [self] else [one for one in open_now if one.arriving]
        min(silent, key=lambda one: one.waiting_since).transport.abort()


class Server(uvicorn.Server):
    """Accepts few connections at once, so that those beyond the limit are closed before the next are accepted."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(_Complaints())
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(BACKLOG)  # asyncio uses one number for this and for ACCEPTED_AT_ONCE


class _Complaints:
    """Logs one line per COMPLAINT_SECONDS where asyncio logs a traceback for every connection it cannot accept."""

    def __init__(self) -> None:
        self._last = -COMPLAINT_SECONDS

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in EXHAUSTED):
            loop.default_exception_handler(context)
        elif time.monotonic() >= self._last + COMPLAINT_SECONDS:
            self._last = time.monotonic()
            log.error("a connection could not be accepted (%s); raise the limit on open files.", error.strerror)


def server(app: Any, grace_seconds: int, most: int | None = None) -> Server:
    """A server for an ASGI application with at most `most` connections at a time."""
    limited = type("LimitedConnection", (Connection,), {"most": most_connections() if most is None else most})
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=limited,
        ws="none",  # the timeouts of Connection do not apply to WebSockets
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=ACCEPTED_AT_ONCE,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=grace_seconds,
    )
    return Server(config)
