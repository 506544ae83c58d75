"""Count the source files that one task uses, or (--rooms) the files and lines of each package.

    python scripts/count_walks.py [train] [update] [serve] [reproduce] [--list]
    python scripts/count_walks.py --rooms

A file counts if one of its functions is called, other than while modules are imported. Each task runs in a process of
its own: `ric train` on a small folder of generated images, one update of RIC, one image sent to a server whose model
returns a stored answer (its computation is part of the update), and `ric reproduce fig5` at its smallest scale
(minutes), with its runs in the same process.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

SOURCE = Path(__file__).parents[1] / "src"
PACKAGE = SOURCE / "ricnet"
OUTPUT = "RICNET_WALK"
"""Environment variable with the path to which a task writes its list of files."""


@contextmanager
def watched() -> Iterator[set[str]]:
    """Collect the files of the package in which a function is called inside the context, in any thread."""
    files: set[str] = set()
    state = threading.local()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if code.co_name == "<module>":
            state.imports = getattr(state, "imports", 0) + {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not getattr(state, "imports", 0):
            files.add(code.co_filename)

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        yield files
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def train() -> set[str]:
    import numpy as np
    from PIL import Image

    from ricnet.apps.cli import main

    shades = np.random.default_rng(0)
    for kind, level in (("dark", 60), ("light", 190)):
        for number in range(20):
            path = Path("photos") / kind / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(shades.integers(level - 40, level + 40, (40, 40, 3), dtype=np.uint8)).save(path)
    with watched() as files:
        main(["train", "photos/", "--epochs", "1", "--device", "cpu"])
    return files


def update() -> set[str]:
    import torch

    from ricnet.data import load
    from ricnet.training.recipes import configure
    from ricnet.training.trainer import Trainer

    dataset = load("digits")
    trainer = Trainer(configure(dataset, None, "fast"), dataset, None, torch.device("cpu"))
    trainer._step()
    with watched() as files:
        trainer._step()
    return files


def serve() -> set[str]:
    import io
    from unittest.mock import patch

    import httpx
    from PIL import Image

    from ricnet.apps.server import application, connections
    from ricnet.data import load
    from ricnet.models.classifier import Classifier, build_model
    from ricnet.training.recipes import configure

    dataset = load("digits")
    config = configure(dataset, None, "fast")
    model, backbone = build_model(config, dataset.input_shape, len(dataset.class_names))
    backbone.fit_normalization(dataset.train.inputs)
    classifier = Classifier(config, config.method, model.eval(), dataset.input_shape, dataset.class_names)
    stored = classifier.refine(dataset.test.inputs[:1])
    image = io.BytesIO()
    Image.new("L", (8, 8)).save(image, "png")
    # Threads are watched from their start on, so the server starts inside.
    with (
        watched() as files,
        patch.object(Classifier, "refine", lambda *_: stored),
        connections.listen("127.0.0.1", 0) as listening,
    ):
        server = connections.server(application.build(classifier, "watched"), 5)
        threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
        with httpx.Client(base_url=connections.address_of(listening), timeout=60, trust_env=False) as client:
            for _ in range(2):
                files.clear()
                client.post("/v1/predict", files={"images": ("digit.png", image.getvalue())}).raise_for_status()
        return set(files)


def reproduce() -> set[str]:
    from ricnet.apps.cli import main

    with watched() as files:
        main(["reproduce", "fig5", "--scale", "smoke", "--jobs", "1", "--device", "cpu"])
    return files


WALKS: dict[str, Callable[[], set[str]]] = {"train": train, "update": update, "serve": serve, "reproduce": reproduce}


def walk(name: str) -> list[str]:
    """The files that one task uses, from a new process of this script."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "files"
        paths = os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {OUTPUT: str(output), "PYTHONPATH": paths}
        command = [sys.executable, str(Path(__file__).resolve()), name]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if not output.is_file():
            sys.exit(f"the task {name} failed:\n{done.stdout}{done.stderr}")
        return output.read_text().splitlines()


def show_rooms() -> None:
    """Print the number of files and lines of each package, for the table in docs/architecture.md."""
    places = {"(top)": sorted(PACKAGE.glob("*.py"))}
    places |= {f"{room.name}/": sorted(room.rglob("*.py")) for room in sorted(PACKAGE.iterdir()) if room.is_dir()}
    places |= {name: sorted((SOURCE / name).rglob("*.py")) for name in ("ricnet", "ricnet_paper")}
    places |= {"tests/": sorted((PACKAGE.parents[1] / "tests").rglob("*.py"))}
    for name, files in places.items():
        if files:
            lines = sum(file.read_text(encoding="utf-8").count("\n") for file in files)
            print(f"{name:<14}{len(files):>5} files {lines:>7,} lines")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("walks", nargs="*", choices=[*WALKS, []], help="tasks to run; by default all")
    parser.add_argument("--list", action="store_true", help="show the files too")
    parser.add_argument("--rooms", action="store_true", help="count files and lines of each package instead")
    options = parser.parse_args()
    if options.rooms:
        show_rooms()
        return
    if OUTPUT in os.environ:
        ours = {Path(file) for file in WALKS[options.walks[0]]() if file.startswith(str(SOURCE))}
        Path(os.environ[OUTPUT]).write_text("".join(f"{file.relative_to(SOURCE)}\n" for file in sorted(ours)))
        return
    for name in options.walks or WALKS:
        files = walk(name)
        print(f"{name}: {len(files)} files")
        if options.list:
            print("".join(f"  {file}\n" for file in files), end="")


if __name__ == "__main__":
    main()
