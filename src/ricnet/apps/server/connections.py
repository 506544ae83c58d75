"""The listening socket, limits on connections, and the middleware around every request.

uvicorn has no timeout for incomplete headers and no limit on idle connections, and at shutdown it waits for stalled
clients. Each connection takes a file descriptor; when none are left, no client can connect.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import time
import uuid
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, ClassVar

import uvicorn
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ricnet.apps.server.limits import Hosts, Limits, Refusal
from ricnet.errors import RicnetError, in_python, require
from ricnet.io import short

log = logging.getLogger("ricnet.server")

HEADER_SECONDS = 10.0  # from the connection, or from the last answer, to the end of the next request's headers
BODY_SECONDS = 60.0  # for a body to arrive, so that stalled clients do not block others
LINGER_SECONDS = 3.0
"""Time to read and discard the rest of a refused body: a client that is still sending when the connection closes never
reads the response."""
KEEP_ALIVE_SECONDS = 5  # from an answer to the first byte of the next request
STALLED_SECONDS = 3.0  # at shutdown, for the rest of a request to arrive, and for a client to read some of its answer
MOST_CONNECTIONS = 1000
ACCEPTED_AT_ONCE = 8  # by asyncio in one turn of its loop, before it calls `connection_made` of the first
RESERVED = 64  # file descriptors for connections accepted but not yet counted, and for files
BACKLOG = 512  # connections that the kernel holds until they are accepted
LOG_SECONDS = 10.0  # between two log lines about connections that could not be accepted
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFETY = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


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
    used = RESERVED
    with contextlib.suppress(OSError):  # some containers have no such folder
        used = len(list(Path("/dev/fd").iterdir()))
    return max(4, min(MOST_CONNECTIONS, limit - used - RESERVED))


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
        asyncio.get_running_loop().set_exception_handler(AcceptErrors())
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(BACKLOG)  # asyncio uses one number for this and for ACCEPTED_AT_ONCE


class AcceptErrors:
    """Logs one line per LOG_SECONDS where asyncio logs a traceback for every connection that it cannot accept."""

    def __init__(self) -> None:
        self._last = -LOG_SECONDS

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in EXHAUSTED):
            loop.default_exception_handler(context)
        elif time.monotonic() >= self._last + LOG_SECONDS:
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


class Guard:
    """Middleware around every request: its id, its log line, its limits, and one sentence if it fails.

    Plain ASGI, because the limits apply while the body arrives. Unexpected errors go to the log under the id that the
    client receives; no client sees a traceback.
    """

    def __init__(self, app: ASGIApp, limits: Limits, hosts: Hosts) -> None:
        self.app, self.limits, self.hosts = app, limits, hosts
        self.in_progress = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send, self.limits.max_body_mb)
        try:
            refusal = await self._answer(exchange)
            if refusal is not None:
                await exchange.refuse(refusal)
        finally:
            exchange.write_line()

    async def _answer(self, exchange: "Exchange") -> Refusal | None:
        """A refused request no longer counts as in progress: the rest of its body may take long to arrive."""
        host, most = exchange.headers.get("host"), self.limits.max_waiting
        if not self.hosts.allows(host):
            name = f"this server does not answer for the host {short(host or '', 60)!r}"
            return Refusal(421, f"{name}; use its address, or start it with --allow-host and this name.")
        counts = exchange.scope["method"] == "POST"
        if counts and self.in_progress >= most:
            return Refusal(429, f"{most} requests are in progress; try again in a moment.", {"retry-after": "1"})
        self.in_progress += counts
        try:
            exchange.check_headers()
            await self.app(exchange.scope, exchange.receive, exchange.send)
        except Refusal as refusal:
            return refusal
        except RicnetError as problem:
            return Refusal(422, in_python(problem.sentence))
        except ClientDisconnect:
            exchange.status = 499  # as in nginx: the client has closed the connection
        except Exception:
            log.exception("%s failed", exchange.id)
            return Refusal(500, f"the server failed; its log has the error under {exchange.id}.")
        finally:
            self.in_progress -= counts
        return None


class Exchange:
    """One request and its response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, max_mb: float) -> None:
        self.id = uuid.uuid4().hex[:12]
        self.scope, self._receive, self._send, self._max_mb = scope, receive, send, max_mb
        self.headers = Headers(scope=scope)
        self._began = time.perf_counter()
        self._received = 0
        self._arrived = "content-length" not in self.headers and "transfer-encoding" not in self.headers
        self.status = 0
        scope.setdefault("state", {}).update(arrived=self._began)

    def check_headers(self) -> None:
        self._refuse_above(int(self.headers.get("content-length", 0)))
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise Refusal(415, "the body is compressed; send it uncompressed.")

    def _refuse_above(self, size: int) -> None:
        if size > 1e6 * self._max_mb:
            raise Refusal(413, f"the request is larger than {self._max_mb:g} MB; send less at once.")

    async def receive(self) -> Message:
        if self._arrived:  # only the end of the connection is left to receive
            return await self._receive()
        try:
            left = BODY_SECONDS - (time.perf_counter() - self._began)
            message = await asyncio.wait_for(self._receive(), max(left, 0.01))
        except TimeoutError:
            raise Refusal(408, f"the request did not arrive within {BODY_SECONDS:g} seconds.") from None
        self._note(message)
        self._refuse_above(self._received)
        return message

    def _note(self, message: Message) -> None:
        self._received += len(message.get("body", b""))
        self._arrived = message["type"] != "http.request" or not message.get("more_body", False)
        self.scope["state"]["arrived"] = time.perf_counter()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", []), *SAFETY, (b"x-request-id", self.id.encode())]
        await self._send(message)

    async def refuse(self, refusal: Refusal) -> None:
        if self.status:  # a response has begun
            return
        if refusal.status != 408:
            await self._drain()
        body = {"error": str(refusal), "request_id": self.id}
        await JSONResponse(body, refusal.status, refusal.headers)(self.scope, self._receive, self.send)

    async def _drain(self) -> None:
        if "expect" in self.headers and not self._received:  # the client waits for permission and will not send
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while not self._arrived:
                    self._note(await self._receive())

    def write_line(self) -> None:
        path = self.scope.get("raw_path", b"").decode("ascii", "replace")[:200]  # as sent: no line breaks
        milliseconds = 1000 * (time.perf_counter() - self._began)
        log.info("%s %s %s %d %.1f ms", self.id, self.scope["method"], path, self.status, milliseconds)
