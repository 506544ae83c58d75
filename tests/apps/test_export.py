"""`ric export` and its file, in new processes, because torch cannot trace code with run-time type checks."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

import ricnet
from problems import MadeOnce
from refusals import cases
from ricnet.apps.commands import export as command
from ricnet.apps.commands.decisions import adjust
from ricnet.data import load as load_data
from ricnet.data.columns import Category, Columns, Number
from ricnet.models.locate import pretrained_names
from ricnet.models.onnx import Agreement, compare

from .conftest import Refused, RunRic

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_consumer.py"


def export(*arguments: object) -> str:
    command = [sys.executable, "-m", "ricnet", "export", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def run(file: Path, inputs: np.ndarray) -> list[np.ndarray]:
    return onnxruntime.InferenceSession(file).run(None, {"input": inputs})


@pytest.fixture(scope="session")
def threshold(digits_run: Path) -> float:
    """One at which the digits halt at different steps."""
    values = ricnet.load(digits_run).refine(np.load(digits_run / "examples.npz")["x"], halt=False).values
    assert values is not None
    return round(float(values[1:].median()), 4)


@pytest.fixture(scope="session")
def exported(digits_run: Path, threshold: float, made_once: MadeOnce) -> Path:
    def write(folder: Path) -> None:
        out = folder / "new" / "model.onnx"
        said = export(digits_run, "--out", out, f"--halt-threshold={threshold}")
        assert f"{out}: 0." in said
        examples = len(np.load(digits_run / "examples.npz")["x"])
        assert f"and {examples} of them halt at the same step" in said

    return made_once("exported", write) / "new" / "model.onnx"


def test_it_agrees_with_pytorch_on_every_test_digit(exported: Path, digits_run: Path, threshold: float) -> None:
    classifier = adjust(ricnet.load(digits_run), threshold, None)
    digits = load_data("digits").test.inputs
    found = compare(exported, classifier, digits)
    assert found.inputs == 449
    assert found.same_steps >= 0.999 * 449
    assert found.difference < 1e-4
    probabilities, steps = run(exported, digits.numpy())
    assert probabilities.dtype == np.float32
    assert len(set(steps.tolist())) > 2
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-5)


@pytest.mark.slow
def test_with_exits_it_leaves_where_pytorch_does(exits_run: Path, tmp_path: Path) -> None:
    """Skipped stages are not computed: operators inside an If run only for examples that continue."""
    classifier, digits = ricnet.load(exits_run), load_data("digits").test.inputs
    values = classifier.refine(digits, halt=False).values
    assert values is not None
    threshold = round(float(values[1].median()), 4)
    out = tmp_path / "model.onnx"
    export(exits_run, "--out", out, f"--halt-threshold={threshold}")
    classifier = adjust(classifier, threshold, None)
    found, path = compare(out, classifier, digits), classifier.refine(digits)
    assert found.same_steps >= 0.999 * 449
    assert found.difference < 1e-5
    probabilities, steps, cost = run(out, digits.numpy())
    assert {1} < set(steps.tolist())
    same = steps == path.halt_step.numpy()
    assert path.cost is not None
    np.testing.assert_allclose(cost[same], path.cost.numpy()[same])
    for row in range(0, 40, 8):
        alone, taken, _ = run(out, digits[row : row + 1].numpy())
        assert taken[0] == steps[row]
        np.testing.assert_allclose(alone[0], probabilities[row], atol=1e-5)
    graph = onnx.load(out).graph
    assert [node.op_type for node in graph.node].count("If") == 2
    kernels = [node.op_type for node in graph.node if node.op_type in ("Conv", "Gemm")]
    assert kernels.count("Conv") == 1, "the first stage alone is outside"


def test_each_row_answers_alone_as_it_does_among_others(exported: Path) -> None:
    digits = load_data("digits").test.inputs[:40].numpy()
    probabilities, steps = run(exported, digits)
    for row in range(0, 40, 8):
        alone, taken = run(exported, digits[row : row + 1])
        np.testing.assert_allclose(alone[0], probabilities[row], atol=1e-6)
        assert taken == steps[row]


def test_the_exported_file_has_a_loop_and_metadata(exported: Path, threshold: float) -> None:
    model = onnx.load(exported)
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node].count("Loop") == 1
    batch, *shape = model.graph.input[0].type.tensor_type.shape.dim
    assert (batch.dim_param, [dim.dim_value for dim in shape]) == ("batch", [1, 8, 8])
    about = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(about["class_names"]) == [str(digit) for digit in range(10)]
    assert (about["method"], json.loads(about["max_steps"])) == ("ric-on-policy", 4)
    assert json.loads(about["halt_threshold"]) == threshold
    assert [path.name for path in exported.parent.iterdir()] == ["model.onnx"]
    assert b".py" not in exported.read_bytes(), "nothing of the machine that made it"


def test_the_consumer_needs_no_torch_and_agrees_with_ric_predict(
    exported: Path, digits_run: Path, threshold: float, tmp_path: Path
) -> None:
    images = []
    for i, pixels in enumerate(load_digits().images[:3]):
        images.append(tmp_path / f"{i}.png")
        Image.fromarray((pixels * 255 / 16).round().astype(np.uint8)).save(images[-1])
    script = f"import sys, runpy; sys.modules.update(torch=None, ricnet=None); runpy.run_path({str(EXAMPLE)!r})"
    (bomb := tmp_path / "bomb.pgm").write_bytes(b"P5 20000 20000 255 ")
    command = [sys.executable, "-c", script, str(exported), str(bomb), *map(str, images)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert str(bomb) in done.stderr
    expected = adjust(ricnet.load(digits_run), threshold, None).refine(
        np.stack([np.asarray(Image.open(path))[None] for path in images])
    )
    confidence, answer = expected.final.exp().max(1)
    assert done.stdout.splitlines() == [
        f"{path}: {k} ({p:.1%}, steps: {n})"
        for path, k, p, n in zip(images, answer, confidence, expected.halt_step, strict=True)
    ]


def test_the_consumer_says_how_it_is_used_and_what_it_cannot_read(tmp_path: Path) -> None:
    row = onnx.helper.make_tensor_value_info("input", onnx.TensorProto.FLOAT, ["batch", 4])
    answer = onnx.helper.make_tensor_value_info("answer", onnx.TensorProto.FLOAT, ["batch", 4])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["input"], ["answer"])], "g", [row], [answer])
    opset = [onnx.helper.make_opsetid("", 18)]
    model = onnx.helper.make_model(graph, ir_version=9, opset_imports=opset)
    onnx.helper.set_model_props(model, {"class_names": '["a", "b"]', "input_shape": "[4]"})
    onnx.save(model, tmp_path / "table.onnx")
    done = [
        subprocess.run([sys.executable, EXAMPLE, *words], capture_output=True, text=True)
        for words in (["--help"], ["table.onnx"], [tmp_path / "table.onnx", "0.png"])
    ]
    assert [each.returncode for each in done] == [0, 2, 1]
    assert "usage: onnx_consumer.py" in done[0].stdout
    assert "required: input" in done[1].stderr
    assert done[2].stderr.startswith(f"{tmp_path}/table.onnx reads rows of 4 numbers, neither images nor texts")


@pytest.mark.parametrize(
    ("out", "flags", "named"),
    cases(
        {
            "another suffix": ("model.pt", (), ".onnx"),
            "no step": ("model.onnx", ("--fixed-steps", "0"), "--fixed-steps 0"),
            "a file that exists": ("old.onnx", (), "--overwrite"),
            "a folder that is a file": ("file/model.onnx", (), "/file"),
        }
    ),
)
def test_wrong_flags(
    out: str, flags: tuple[str, ...], named: str, digits_run: Path, tmp_path: Path, refused: Refused
) -> None:
    (tmp_path / "old.onnx").write_text("mine")
    (tmp_path / "file").touch()
    refused(named, "export", digits_run, "--out", tmp_path / out, *flags)
    assert (tmp_path / "old.onnx").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "old.onnx"]


def test_an_old_file_is_replaced_with_overwrite_and_the_encoding_is_named(
    digits_run: Path, tmp_path: Path, run_ric: RunRic, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = Columns("label", (Number("age", 40.0, 12.0, True), Category("sex", ("f", "m"), False)))
    model = replace(ricnet.load(digits_run), columns=columns)
    out = tmp_path / "model.onnx"
    out.write_text("old")
    monkeypatch.setattr(command, "open_model", lambda *_: model)
    monkeypatch.setattr(command, "export_onnx", lambda *_: (out.write_text("new"), Agreement(3, 3, 1e-6))[1])
    said = run_ric("export", digits_run, "--out", out, "--overwrite").out
    assert out.read_text() == "new"
    assert "reads 4 numbers per row, not cells" in said
    monkeypatch.setenv("COLUMNS", "80")
    lines = run_ric("export", digits_run, "--out", out, "--overwrite").out.splitlines()
    assert all(len(line) <= 80 for line in lines if " " in line)  # the path is longer


def trained(folder: Path, **settings: Any) -> Path:
    ricnet.train("digits", epochs=3, device="cpu", out=folder, **settings)
    return folder


def agrees(folder: Path, out: Path, *flags: object, inputs: torch.Tensor | None = None) -> None:
    export(folder, "--out", out, *flags)
    found = compare(out, ricnet.load(folder), load_data("digits").test.inputs if inputs is None else inputs)
    assert found.same_steps >= 0.999 * found.inputs
    assert found.difference < 1e-4


SYSTEMS: list[dict[str, Any]] = [
    {"method": "ric"},
    {"method": "ric", "readout": "implied"},
    {"method": "ric", "head": "logistic-normal"},
    {"method": "supervised", "objective": "logitnorm", "calibration": "temperature", "label_noise": 0.2},
    {"method": "anytime", "confidence_threshold": 0.7},
    {"method": "act"},
    {"method": "pondernet", "calibration": "temperature"},
]


@pytest.mark.slow
@pytest.mark.parametrize("settings", SYSTEMS, ids=lambda settings: "-".join(map(str, settings.values())))
def test_every_method_agrees(settings: dict[str, Any], tmp_path: Path) -> None:
    agrees(trained(tmp_path / "run", **settings), tmp_path / "model.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ric", "act"])
def test_fixed_steps_give_every_belief(method: str, tmp_path: Path) -> None:
    out = tmp_path / "model.onnx"
    agrees(trained(tmp_path / "run", method=method), out, "--fixed-steps", 6)
    outputs = {value.name: len(value.type.tensor_type.shape.dim) for value in onnx.load(out).graph.output}
    assert outputs == {"beliefs": 3, "steps": 1} | ({"values": 2} if method == "ric" else {})
    assert "Loop" not in [node.op_type for node in onnx.load(out).graph.node]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["images", "features"])
def test_other_inputs_go_in_as_they_are(kind: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    if kind == "images":
        x, settings = random.integers(0, 256, (200, 3, 32, 32), dtype=np.uint8), {"encoder": "resnet10", "width": 0.25}
        y = np.arange(200) % 5
    else:
        x, settings = random.normal([5.0, 0.0, -300.0], [0.1, 1.0, 50.0], (300, 3)).astype(np.float32), {}
        y = (x[:, 1] > 0).astype(np.int64)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    ricnet.train(tmp_path / "data.npz", epochs=2, device="cpu", out=tmp_path / "run", **settings)
    agrees(tmp_path / "run", tmp_path / "model.onnx", inputs=torch.from_numpy(x))


UNTRACEABLE = """
import sys, torch, ricnet
from ricnet.models.onnx import export_onnx

class Wayward(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 8)
    def forward(self, x):
        x = self.layer(x.flatten(1))
        return x if x.sum() > 0 else -x

model = ricnet.train("digits", encoder=Wayward(), epochs=1, device="cpu", out=sys.argv[1])
try:
    export_onnx(model, sys.argv[2])
except ricnet.RicnetError as error:
    print(error)
"""


@pytest.mark.slow
def test_an_encoder_that_cannot_be_traced_is_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-c", UNTRACEABLE, str(tmp_path / "run"), str(tmp_path / "model.onnx")]
    said = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()[-1]
    assert said.startswith("the network cannot be exported to ONNX (")
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.slow
def test_the_pretrained_model_agrees_on_a_thousand_test_images(tmp_path: Path) -> None:
    if "cifar10" not in pretrained_names():
        pytest.skip("pretrained:cifar10 does not come with this ricnet")
    if "RICNET_DATA" not in os.environ:
        pytest.skip("needs CIFAR-10 in $RICNET_DATA")
    export("pretrained:cifar10", "--out", tmp_path / "model.onnx")
    images, classifier = load_data("cifar10").test.inputs[:1000], ricnet.load("pretrained:cifar10")
    found = [compare(tmp_path / "model.onnx", classifier, part) for part in images.split(100)]
    assert sum(part.same_steps for part in found) >= 999
    assert max(part.difference for part in found) < 1e-4
