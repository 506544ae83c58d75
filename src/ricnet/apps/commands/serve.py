"""ric serve: a trained model behind HTTP, with a page on which to watch it think."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import tyro

from ricnet.apps.cli import parse
from ricnet.apps.server.limits import Limits
from ricnet.errors import require_extra

if TYPE_CHECKING:
    import socket

    from ricnet.apps.server.hosts import Hosts
    from ricnet.models.classifier import Classifier

NEEDED = ("serve", "fastapi", "python_multipart", "uvicorn")
"""The extra, and what is of it."""


@dataclass(frozen=True)
class Serve:
    """Answer over HTTP (pip install 'ricnet[serve]'): POST /v1/predict with images or JSON, GET /v1/model, and at / a
    page on which to watch the model think. Requests that arrive together are answered together."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder that ric train wrote, a model on the Hub (user/name), or pretrained:NAME."""
    host: str = "127.0.0.1"
    """Address to listen on. As it is, only this machine can ask; 0.0.0.0 lets in everyone who can reach it, without
    a password or encryption: for that, put a web server before it."""
    port: int = 8000
    """Port to listen on; 0 takes any that is free."""
    allow_host: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Another host name of this server, such as that of a web server before it; may be given several times. Requests
    for other names than localhost and the address listened on are refused, so that no page of another site can read the
    answers. With --host 0.0.0.0, any IP address and this machine's own name are allowed too."""
    open: bool = False
    """Open the page in a browser."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1 …"""
    budget: float | None = None
    """Of a model with exits: stop so that the mean share of compute stays within this (see ric predict), unless a
    request has a budget of its own."""
    limits: Limits = field(default_factory=Limits)


def main(arguments: Sequence[str]) -> None:
    options: Serve = parse(Serve, arguments, "serve")
    require_extra("ric serve", *NEEDED)
    from ricnet.apps.commands.evaluate import within_budget
    from ricnet.apps.server.application import listen
    from ricnet.apps.server.hosts import allowed_hosts
    from ricnet.models.loading import load
    from ricnet.training.api import pick_device
    from ricnet.training.console import say, unfinished

    listening = listen(options.host, options.port)  # before the model is loaded, which takes longer
    with listening:
        hosts = allowed_hosts(listening, options.host, options.allow_host)
        classifier = load(options.run, str(pick_device(options.device)))
        if options.budget is not None:
            classifier = within_budget(classifier, options.budget)
        say(unfinished(classifier))
        serve(classifier, options.run, listening, options.open, options.limits, hosts)


def serve(
    classifier: "Classifier",
    run: str,
    listening: "socket.socket",
    open_browser: bool,
    limits: Limits | None = None,
    hosts: "Hosts | None" = None,
) -> None:
    from ricnet.apps.server import application
    from ricnet.models.locate import PREFIX
    from ricnet.training.console import say

    name = run.removeprefix(PREFIX).rstrip("/\\").replace("\\", "/").rpartition("/")[2] or run
    app = application.build(classifier, name, limits, hosts)
    address = application.address_of(listening)
    say([f"page     {address}", f"API      {address}/docs", "Ctrl-C stops it."])
    application.run(app, listening, open_browser)
