"""ric serve: an HTTP server for a trained model, with a demo page."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import tyro

from ricnet.apps.cli import parse
from ricnet.apps.server.limits import Hosts, Limits, allowed_hosts
from ricnet.errors import require_extra

if TYPE_CHECKING:
    import socket

    from ricnet.models.classifier import Classifier

NEEDED = ("serve", "fastapi", "python_multipart", "uvicorn")
"""The extra, and its modules."""


@dataclass(frozen=True)
class Serve:
    """Serve a model over HTTP (pip install 'ricnet[serve]'): POST /v1/predict with images or JSON, GET /v1/model, and a
    demo page at /. Requests that arrive together are batched."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder that ric train wrote, a model on the Hub (user/name), or pretrained:NAME."""
    host: str = "127.0.0.1"
    """Address to listen on. The default admits this machine only; 0.0.0.0 admits everyone who can reach it, without
    password or encryption: then put a web server in front."""
    port: int = 8000
    """Port to listen on; 0 takes any that is free."""
    allow_host: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Another host name of this server, such as that of a web server in front; may be given several times. Requests for
    other names than localhost and the address listened on are refused, so that no page of another site can read the
    answers. With --host 0.0.0.0, any IP address and this machine's own name are allowed too."""
    open: bool = False
    """Open the page in a browser."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1 …"""
    budget: float | None = None
    """For a model with exits: mean share of compute of the answers (see ric predict), unless a request has a budget of
    its own."""
    limits: Limits = field(default_factory=Limits)


def main(arguments: Sequence[str]) -> None:
    options: Serve = parse(Serve, arguments, "serve")
    require_extra("ric serve", *NEEDED)
    from ricnet.apps.commands.evaluate import within_budget
    from ricnet.apps.server.connections import listen
    from ricnet.models.loading import load
    from ricnet.training.api import pick_device
    from ricnet.training.console import say, unfinished

    with listen(options.host, options.port) as listening:  # before the model is loaded, which takes longer
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
    hosts: Hosts | None = None,
) -> None:
    from ricnet.apps.server import application, connections
    from ricnet.models.locate import PREFIX
    from ricnet.training.console import say

    name = run.removeprefix(PREFIX).rstrip("/\\").replace("\\", "/").rpartition("/")[2] or run
    app = application.build(classifier, name, limits, hosts)
    address = connections.address_of(listening)
    say([f"page     {address}", f"API      {address}/docs", "Ctrl-C stops it."])
    application.run(app, listening, open_browser)
