"""Photographs that are stored larger than they are read: the same contract in training, files, ONNX and the server."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import ricnet
from made_runs import draw_no_pages
from ricnet.apps.cli import main
from ricnet.apps.server.limits import Limits
from ricnet.apps.server.responses import describe
from ricnet.models.classifier import backbone_of
from ricnet.models.onnx import metadata
from ricnet.report.card import model_card

from .conftest import Refused, RunRic

SHORT = "--encoder conv --width 0.1 --epochs 2 --device cpu --batch-size 8 --method supervised"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bright and dark photographs; the frame around the middle is noise."""
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for name, low in (("bright", 150), ("dark", 0)):
        (folder / name).mkdir()
        for i in range(12):
            pixels = random.integers(0, 256, (65, 65, 3), dtype=np.uint8)
            pixels[6:-6, 6:-6] = random.integers(low, low + 100, (53, 53, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "larger"
    with pytest.MonkeyPatch.context() as patch:
        draw_no_pages(patch)
        main(["train", str(photos), "--out", str(out), "--resolution", "52", "--oversize", "1.25", *SHORT.split()])
    return out


def test_the_run_names_both_sizes_and_its_evaluation_repeats(run: Path, photos: Path, run_ric: RunRic) -> None:
    stored = json.loads((run / "config.json").read_text())
    assert stored["config"]["oversize"] == 1.25
    assert stored["data"]["input_shape"] == [3, 65, 65]
    nll = json.loads((run / "evaluation.json").read_text())["test"]["nll"]
    for data in ([], ["--data", photos]):
        measured = json.loads(run_ric("evaluate", run, "--json", *data).out)
        assert measured["test"]["nll"] == pytest.approx(nll, rel=1e-5)


@pytest.mark.parametrize(
    ("flags", "stored"),
    [
        ("--resolution 52", 65),  # 1.25 × 52
        ("--resolution 56", 65),  # all pixels of the photographs, fewer than 1.25 × 56
        ("", 65),  # read whole at their own size
        ("--resolution 52 --oversize 1", 52),
        ("--resolution 52 --preset paper --encoder conv", 52),
    ],
)
def test_fast_stores_photographs_larger_as_far_as_they_have_pixels(
    photos: Path, tmp_path: Path, flags: str, stored: int
) -> None:
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        draw_no_pages(patch)
        main(["train", str(photos), "--out", str(out), *SHORT.split(), *flags.split()])
    entry = json.loads((out / "config.json").read_text())
    side = entry["config"]["resolution"] or 65
    assert entry["data"]["input_shape"] == [3, stored, stored]
    assert entry["config"]["oversize"] == pytest.approx(stored / side)
    assert ricnet.load(out).view_shape == (3, side, side)


def test_the_centre_is_read_from_files_and_arrays_alike(run: Path, photos: Path) -> None:
    model = ricnet.load(run)
    assert (model.input_shape, model.view_shape) == ((3, 65, 65), (3, 52, 52))
    pixels = np.stack([np.asarray(Image.open(photos / name)) for name in ("bright/0.png", "dark/3.png")])
    beliefs = model.predict_proba(pixels.transpose(0, 3, 1, 2))
    np.testing.assert_allclose(model.predict_proba([photos / "bright/0.png", photos / "dark/3.png"]), beliefs)
    pixels[:, :6] = 77  # the frame is not read
    np.testing.assert_allclose(model.predict_proba(pixels.transpose(0, 3, 1, 2)), beliefs)
    images = torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())
    assert backbone_of(model.model).normalized(images).shape == (2, 3, 52, 52)


def test_onnx_server_and_card_say_so(run: Path) -> None:
    model = ricnet.load(run)
    about = metadata(model, 1)
    assert (json.loads(about["input_shape"]), json.loads(about["view_shape"])) == ([3, 65, 65], [3, 52, 52])
    told = describe(model, "dogs", Limits())
    assert (told["input"]["shape"], told["input"]["view"]) == ([3, 65, 65], [3, 52, 52])
    stored = json.loads((run / "config.json").read_text())
    assert "central 52 × 52 pixels" in model_card(stored["config"], stored["data"], "me/dogs", None)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("--oversize 1.25", ("--oversize 1.25", "photographs", "leave it out")),
        ("--oversize 0.5", ("--oversize", "from 1 to 4")),
        ("--crop-area 1.5", ("--crop-area", "at most 1")),
    ],
)
def test_where_it_has_no_meaning_it_is_refused(given: str, named: object, refused: Refused, tmp_path: Path) -> None:
    refused(named, "train", "digits", *given.split(), "--out", tmp_path / "run", "--device", "cpu")
    assert not (tmp_path / "run").exists()
