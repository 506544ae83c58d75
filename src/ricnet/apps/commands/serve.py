"""`ric serve`, an HTTP server for a trained model, and `ric demo`, the server with a bundled model."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ricnet.apps.cli import Positional, parse
from ricnet.apps.commands.model import Answering, open_model
from ricnet.apps.server.limits import Hosts, Limits, allowed_hosts
from ricnet.errors import require_extra
from ricnet.io import PREFIX

if TYPE_CHECKING:
    import socket

    from ricnet.evaluation.costs import Costs
    from ricnet.models.classifier import Classifier

EXTRA = ("serve", "fastapi", "python_multipart", "uvicorn")
"""The extra and its modules."""
PRETRAINED = "cifar10"
FOLDER = Path("runs") / "digits-demo"
EPOCHS = 12


@dataclass(frozen=True)
class Serve:
    """Serve a model over HTTP (pip install 'ricnet[serve]'): POST /v1/predict with images or JSON, GET /v1/model, and a
    demo page at /. Requests that arrive together are batched."""

    run: Annotated[str, Positional("RUN")]
    """Folder that ric train wrote, a model on the Hub (user/name), or pretrained:NAME."""
    host: str = "127.0.0.1"
    """Address to listen on. The default admits only this machine; 0.0.0.0 admits everyone who can reach it, without
    password or encryption: then put a web server in front."""
    port: int = 8000
    """Port to listen on; 0 takes any free port."""
    allow_host: tuple[str, ...] = ()
    """Other host names of this server, such as that of a web server in front. Requests for other names than localhost
    and the address listened on are refused, so that no page of another site can read the answers. With --host 0.0.0.0,
    any IP address and this machine's own name are allowed too."""
    open: bool = False
    """Open the page in a browser."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1 …"""
    budget: float | None = None
    """For a model with exits: mean share of compute of the answers (see ric predict), unless a request has a budget of
    its own."""
    costs: Path | None = None
    """CSV file of costs (see ric predict): requests are answered with the class of least expected cost."""
    limits: Limits = field(default_factory=Limits)


def serve(arguments: Sequence[str]) -> None:
    options: Serve = parse(Serve, arguments, "serve")
    require_extra("ric serve", *EXTRA)
    from ricnet.apps.server.connections import listen
    from ricnet.evaluation.costs import read_costs

    with listen(options.host, options.port) as listening:  # before the model is loaded, which takes longer
        hosts = allowed_hosts(listening, options.host, options.allow_host)
        classifier = open_model(options.run, options.device, Answering(budget=options.budget))
        costs = None if options.costs is None else read_costs(options.costs, classifier.class_names)
        run_server(classifier, options.run, listening, options.open, options.limits, hosts, costs)


def run_server(
    classifier: "Classifier",
    run: str,
    listening: "socket.socket",
    open_browser: bool,
    limits: Limits | None = None,
    hosts: Hosts | None = None,
    costs: "Costs | None" = None,
) -> None:
    from ricnet.apps.server import application, connections
    from ricnet.training.console import say

    name = run.removeprefix(PREFIX).rstrip("/\\").replace("\\", "/").rpartition("/")[2] or run
    app = application.build(classifier, name, limits, hosts, costs)
    address = connections.address_of(listening)
    say([f"page     {address}", f"API      {address}/docs", "Ctrl-C stops the server."])
    application.run(app, listening, open_browser)


@dataclass(frozen=True)
class Demo:
    """Show in a browser how a classifier refines its belief (pip install 'ricnet[serve]'): the pretrained CIFAR-10
    model, or, if this installation lacks it, a model of scikit-learn's digits, trained first in less than a minute."""

    port: int = 8000
    """Port to listen on; 0 takes any free port."""
    browser: bool = True
    """Open the page in a browser."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1 …"""


def demo(arguments: Sequence[str]) -> None:
    options: Demo = parse(Demo, arguments, "demo")
    require_extra("ric demo", *EXTRA)
    from ricnet.apps.server.connections import listen

    with listen("127.0.0.1", options.port) as listening:
        run = prepare(options.device)
        run_server(open_model(run, options.device), run, listening, options.browser)


def prepare(device: str) -> str:
    """The run to show; digits are trained only once."""
    from ricnet.models.locate import pretrained_names
    from ricnet.models.run import RunFolder
    from ricnet.training.api import train
    from ricnet.training.console import say

    if PRETRAINED in pretrained_names():
        return PREFIX + PRETRAINED
    if not RunFolder(FOLDER).finished:
        say([f"This installation lacks {PREFIX}{PRETRAINED}; training on digits instead, in {FOLDER}."])
        train("digits", out=FOLDER, epochs=EPOCHS, device=device, overwrite=True)
    return str(FOLDER)
