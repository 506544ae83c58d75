"""Middleware around every request: its id, its log line, the limits on its body, and one sentence if it fails.

Plain ASGI, because the limits apply while the body arrives. Unexpected errors go to the log under the id that the
client receives; no client sees a traceback.
"""

import asyncio
import contextlib
import json
import logging
import time
import uuid
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ricnet.apps.server.hosts import Hosts
from ricnet.apps.server.limits import Limits, Refusal
from ricnet.errors import RicnetError
from ricnet.io import short

log = logging.getLogger("ricnet.server")

BODY_SECONDS = 60.0
"""Time for a body to arrive, so that stalled clients do not block others."""
LINGER_SECONDS = 3.0
"""Time to read and discard the rest of a refused body: a client that is still sending when the connection closes never
reads the response."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFETY = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


class Guard:
    def __init__(self, app: ASGIApp, limits: Limits, hosts: Hosts) -> None:
        self.app, self.hosts = app, hosts
        self.body_bytes, self.max_waiting = limits.body_bytes, limits.max_waiting
        self.in_progress = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send, self.body_bytes)
        try:
            refusal = await self._answer(exchange)
            if refusal is not None:
                await exchange.refuse(refusal.status, str(refusal))
        finally:
            exchange.write_line()

    async def _answer(self, exchange: "Exchange") -> Refusal | None:
        """A refused request no longer counts as in progress: the rest of its body may take long to arrive."""
        if not self.hosts.allows(exchange.host):
            name = f"this server does not answer for the host {short(exchange.host or '', 60)!r}"
            return Refusal(421, f"{name}; use its address, or start it with --allow-host and this name.")
        counts = exchange.scope["method"] == "POST"
        if counts and self.in_progress >= self.max_waiting:
            return Refusal(429, f"{self.max_waiting} requests are in progress; try again in a moment.")
        self.in_progress += counts
        try:
            exchange.check_headers()
            await self.app(exchange.scope, exchange.receive, exchange.send)
        except Refusal as refusal:
            return refusal
        except RicnetError as problem:
            return Refusal(422, str(problem))
        except ClientDisconnect:
            exchange.status = 499  # as nginx logs it; nobody reads the response
        except Exception:
            log.exception("%s failed", exchange.id)
            return Refusal(500, f"the server failed; its log has the error under {exchange.id}.")
        finally:
            self.in_progress -= counts
        return None


class Exchange:
    """One request and its response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limit: int) -> None:
        self.id = uuid.uuid4().hex[:12]
        self.scope, self._receive, self._send, self._limit = scope, receive, send, limit
        self._headers = Headers(scope=scope)
        self.host = self._headers.get("host")
        self._began = time.perf_counter()
        self._received = 0
        self._arrived = "content-length" not in self._headers and "transfer-encoding" not in self._headers
        self.status = 0
        scope.setdefault("state", {}).update(request_id=self.id, arrived=self._began)

    def check_headers(self) -> None:
        self._refuse_above(int(self._headers.get("content-length", 0)))
        if self._headers.get("content-encoding", "identity").lower() != "identity":
            raise Refusal(415, "the body is compressed; send it uncompressed.")

    def _refuse_above(self, size: int) -> None:
        if size > self._limit:
            raise Refusal(413, f"the request is larger than {self._limit / 1e6:g} MB; send less at once.")

    async def receive(self) -> Message:
        if self._arrived:  # what remains is the end of the connection
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

    async def refuse(self, status: int, sentence: str) -> None:
        if self.status:  # a response has begun
            return
        if status != 408:
            await self._drain()
        body = problem(sentence, self.id)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers += [(b"retry-after", b"1")] * (status == 429)
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def _drain(self) -> None:
        if "expect" in self._headers and not self._received:  # the client waits for permission and will not send
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while not self._arrived:
                    self._note(await self._receive())

    def write_line(self) -> None:
        path = self.scope.get("raw_path", b"").decode("ascii", "replace")[:200]  # as sent: no line breaks
        milliseconds = 1000 * (time.perf_counter() - self._began)
        log.info("%s %s %s %d %.1f ms", self.id, self.scope["method"], path, self.status, milliseconds)


def problem(sentence: str, request_id: str) -> bytes:
    return json.dumps({"error": sentence, "request_id": request_id}, ensure_ascii=False).encode()
