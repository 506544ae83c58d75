"""Listening: from an application to a process that answers until it is told to stop."""

import contextlib
import logging
import socket
import sys
import threading
import webbrowser

import uvicorn
from fastapi import FastAPI

from ricnet.errors import RicnetError, require

GRACE_SECONDS = 30
"""How long requests that are under way may take after the server was told to stop."""


def listen(host: str, port: int) -> socket.socket:
    """From here on clients can connect; they are answered once the server runs."""
    require(0 <= port <= 65535, "port", port, "from 0 to 65535")
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return _as_tcp(socket.create_server(address[:2], family=family, backlog=512))
    except (OSError, UnicodeError) as error:  # the latter of names that cannot be one, such as a..b
        raise RicnetError(
            f"--host {host} --port {port} cannot be listened on ({getattr(error, 'strerror', None) or error}); "
            "choose another --port, or 0 for any that is free."
        ) from error


def _as_tcp(listening: socket.socket) -> socket.socket:
    """The same socket, saying that it is TCP: asyncio lets answers go out at once only where that is said. Else the
    second half of an answer waits for the client to acknowledge the first, which takes 40 ms on Linux."""
    return socket.socket(listening.family, listening.type, socket.IPPROTO_TCP, listening.detach())


def address_of(listening: socket.socket) -> str:
    """What to type into a browser on this machine."""
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(app: FastAPI, listening: socket.socket, open_browser: bool = False) -> None:
    """Until Ctrl-C or SIGTERM; then no one new is let in, and those who are in are answered."""
    _log_to_stderr()
    if open_browser:
        threading.Thread(target=webbrowser.open, args=[address_of(listening)], daemon=True).start()
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    with contextlib.suppress(KeyboardInterrupt):  # the usual way to end a server is no failure
        uvicorn.Server(config).run(sockets=[listening])


def _log_to_stderr() -> None:
    log = logging.getLogger("ricnet.server")
    if not log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
