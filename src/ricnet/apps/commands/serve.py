"""`ric serve`, an HTTP server for a trained model, and `ric demo`, the server with a bundled model."""

import socket
from pathlib import Path

from ricnet.apps.commands.decisions import open_model
from ricnet.apps.commands.options import Demo, Serve
from ricnet.apps.server.limits import Hosts, Limits, allowed_hosts
from ricnet.errors import require_extra
from ricnet.evaluation.costs import Costs, read_costs
from ricnet.io import PREFIX
from ricnet.models.classifier import Classifier
from ricnet.models.locate import pretrained_names
from ricnet.models.run import RunFolder
from ricnet.terminal import say
from ricnet.training.api import train

EXTRA = ("serve", "fastapi", "python_multipart", "uvicorn")
"""The extra and its modules."""
PRETRAINED = "cifar10"
FOLDER = Path("runs") / "digits-demo"
EPOCHS = 12


def serve(options: Serve) -> None:
    require_extra("ric serve", *EXTRA)
    from ricnet.apps.server.connections import listen

    with listen(options.host, options.port) as listening:  # before the model is loaded, which takes longer
        hosts = allowed_hosts(listening, options.host, options.allow_host)
        classifier = open_model(options.run, options.device, options.budget)
        costs = None if options.costs is None else read_costs(options.costs, classifier.class_names)
        run_server(classifier, options.run, listening, options.limits, hosts, costs)


def run_server(
    classifier: Classifier,
    run: str,
    listening: socket.socket,
    limits: Limits | None = None,
    hosts: Hosts | None = None,
    costs: Costs | None = None,
    open_browser: bool = False,
) -> None:
    from ricnet.apps.server import application, connections

    name = run.removeprefix(PREFIX).rstrip("/\\").replace("\\", "/").rpartition("/")[2] or run
    app = application.build(classifier, name, limits, hosts, costs)
    address = connections.address_of(listening)
    say([f"page     {address}", f"API      {address}/docs", "Ctrl-C stops the server."])
    application.run(app, listening, open_browser)


def demo(options: Demo) -> None:
    require_extra("ric demo", *EXTRA)
    from ricnet.apps.server.connections import listen

    with listen("127.0.0.1", options.port) as listening:
        run = prepare(options.device)
        run_server(open_model(run, options.device), run, listening, open_browser=options.browser)


def prepare(device: str) -> str:
    """The run to show; digits are trained only once."""
    if PRETRAINED in pretrained_names():
        return PREFIX + PRETRAINED
    if not RunFolder(FOLDER).finished:
        say([f"This installation lacks {PREFIX}{PRETRAINED}; training on digits instead, in {FOLDER}."])
        train("digits", out=FOLDER, epochs=EPOCHS, device=device, overwrite=True)
    return str(FOLDER)
