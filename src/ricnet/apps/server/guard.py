"""Around every request: its id, its line in the log, the limits on its body, and one sentence where it fails.

Pure ASGI, because limits on a body have to stand where its bytes come in. No client ever sees a traceback: what we did
not expect goes to the log, under the id that the client is given.
"""

import asyncio
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
"""How long a request may take to arrive, so that stalled clients do not take up all the places."""
LINGER_SECONDS = 3.0
"""How long the rest of a refused body is read and thrown away: a client that is still sending, and finds the line cut,
never looks at the answer."""
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
        self.app, self.limits, self.hosts = app, limits, hosts
        self.under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send, self.limits.body_bytes)
        try:
            refusal = await self._answer(exchange)
            if refusal is not None:
                await exchange.refuse(refusal.status, str(refusal))
        finally:
            exchange.write_line()

    async def _answer(self, exchange: "Exchange") -> Refusal | None:
        """Who is refused gives up its place before it hears of it: the rest of its body may take long to come in."""
        if not self.hosts.allows(exchange.host):
            return Refusal(
                421,
                f"this server does not answer for the host {short(exchange.host or '', 60)!r}; use its address, or "
                "start it with --allow-host and this name.",
            )
        asks = exchange.scope["method"] == "POST"
        most = self.limits.max_waiting
        if asks and self.under_way >= most:
            return Refusal(429, f"{most} requests are under way already; try again in a moment.")
        self.under_way += asks
        try:
            exchange.check_length()
            await self.app(exchange.scope, exchange.receive, exchange.send)
        except Refusal as refusal:
            return refusal
        except RicnetError as problem:
            return Refusal(422, str(problem))
        except ClientDisconnect:
            exchange.status = 499  # as nginx calls it: nobody is there to be answered
        except Exception:
            log.exception("%s failed", exchange.id)
            return Refusal(500, f"the server failed; its log says why, under {exchange.id}.")
        finally:
            self.under_way -= asks
        return None


class Exchange:
    """One request and its answer, as they pass by."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limit: int) -> None:
        self.id = uuid.uuid4().hex[:12]
        self.scope, self._receive, self._send, self._limit = scope, receive, send, limit
        self._headers = Headers(scope=scope)
        self._began = time.perf_counter()
        self._received = 0
        self._arrived = "content-length" not in self._headers and "transfer-encoding" not in self._headers
        self.status = 0
        scope.setdefault("state", {}).update(request_id=self.id, arrived=self._began)

    @property
    def host(self) -> str | None:
        return self._headers.get("host")

    def check_length(self) -> None:
        """Of bodies that say how long they are, which is nearly all."""
        self._refuse_above(int(self._headers.get("content-length", 0)))
        if self._headers.get("content-encoding", "identity").lower() != "identity":
            raise Refusal(415, "the body is compressed; send it as it is.")

    def _refuse_above(self, size: int) -> None:
        if size > self._limit:
            raise Refusal(413, f"the request is larger than {self._limit / 1e6:g} MB; send less at once.")

    async def receive(self) -> Message:
        if self._arrived:  # then all that can come is that the client goes away, whenever that is
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
        if self.status:  # too late to say anything else
            return
        if status != 408:
            await self._drain()
        body = problem(sentence, self.id)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers += [(b"retry-after", b"1")] * (status == 429)
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def _drain(self) -> None:
        if "expect" in self._headers and not self._received:  # it asked before sending, and will not send
            return
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                while not self._arrived:
                    self._note(await self._receive())
        except TimeoutError:
            pass

    def write_line(self) -> None:
        """The path as it was sent, which is ASCII without line breaks, whatever it stands for."""
        path = self.scope.get("raw_path", b"").decode("ascii", "replace")[:200]
        milliseconds = 1000 * (time.perf_counter() - self._began)
        log.info("%s %s %s %d %.1f ms", self.id, self.scope["method"], path, self.status, milliseconds)


def problem(sentence: str, request_id: str) -> bytes:
    return json.dumps({"error": sentence, "request_id": request_id}, ensure_ascii=False).encode()
