"""A trained classifier as one ONNX file, which is tried before it is written.

Inputs are what the classifier reads (uint8 images, float features): normalisation is in the graph, and so is the loop
that stops by itself. What a program needs to know beside it stands in the file's metadata.
"""

import contextlib
import copy
import json
import logging
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Num
from torch import Tensor, nn

from ricnet.apps.onnx_agreement import Agreement, compare
from ricnet.apps.onnx_graph import Halting, OnePass, Unrolled, trigamma
from ricnet.data import read_npz_inputs
from ricnet.errors import RicnetError, require
from ricnet.extras import require_extra
from ricnet.io import write_atomically
from ricnet.methods import Method, Supervised
from ricnet.methods.iterative import Iterative
from ricnet.nets.encoders import Backbone
from ricnet.nets.refiner import RecurrentClassifier
from ricnet.training.classifier import Classifier
from ricnet.training.conclusion import AFTER_TRAINING
from ricnet.training.run_folder import void
from ricnet.version import __version__

if TYPE_CHECKING:
    from torch.onnx import ONNXProgram

TRIED = 16
"""Inputs that are drawn at random to try a file on, where the run has no examples."""


def export_onnx(
    classifier: Classifier, out: str | Path, max_steps: int | None = None, fixed_steps: int | None = None
) -> Agreement:
    """Write the classifier to `out`, and say how well the file agrees with it.

    The file takes `input` and gives `probabilities` (batch, classes) and `steps` (batch,): each example stops by
    itself, after `max_steps` at the latest. With `fixed_steps` all make so many, without a loop, and it gives `beliefs`
    (steps, batch, classes), `steps`, where each would stop, and for RIC `values` (steps, batch).
    """
    require_extra("ric export", "onnx", "onnx", "onnxscript", "onnxruntime")
    _check(classifier.method, max_steps, fixed_steps)
    classifier = _plain(classifier)
    network, names = _network(classifier, max_steps, fixed_steps)
    example = torch.zeros(2, *classifier.input_shape, dtype=_input_dtype(classifier))
    program = _translate(network, example, names)
    _label(program, describe(classifier, getattr(network, "steps", 1)))
    file: bytes = program.model_proto.SerializeToString()
    agreement = compare(file, classifier, _inputs_to_try(classifier))
    agreement.check()
    write_atomically(Path(out), lambda draft: void(draft.write_bytes(file)))
    return agreement


def describe(classifier: Classifier, steps: int) -> dict[str, str]:
    """The file's metadata: text as it is, everything else as JSON."""
    method = classifier.method
    backbone = _backbone(classifier.model)
    entry: dict[str, Any] = {
        "ricnet": __version__,
        "method": method.name,
        "class_names": list(classifier.class_names),
        "input_shape": list(classifier.input_shape),
        "mean": backbone.mean.tolist(),
        "std": backbone.std.tolist(),
        "temperature": classifier.temperature,
        "max_steps": steps,
    }
    entry |= {name: getattr(method, name) for name in AFTER_TRAINING if hasattr(method, name)}
    if classifier.columns is not None:  # the file reads numbers; cells become numbers at whoever feeds it
        entry["columns"] = classifier.columns.to_json()
    return {key: text if isinstance(text, str) else json.dumps(text, ensure_ascii=False) for key, text in entry.items()}


def _check(method: Method[Any], max_steps: int | None, fixed_steps: int | None) -> None:
    require(max_steps is None or max_steps >= 1, "max_steps", max_steps, "at least 1")
    require(fixed_steps is None or fixed_steps >= 1, "fixed_steps", fixed_steps, "at least 1")
    if max_steps is not None and fixed_steps is not None:
        raise RicnetError("--max-steps and --fixed-steps exclude each other; leave one of them out.")
    if fixed_steps is not None and isinstance(method, Supervised):
        raise RicnetError(f"--fixed-steps {fixed_steps}: the method {method.name} has one step; leave the flag out.")
    if isinstance(method, Iterative) and method.draws:
        raise RicnetError(
            f"this {method.name} model draws at random when it answers, which a file cannot; "
            "export one with --feedback mean (RIC) or --halting median (PonderNet)."
        )


def _plain(classifier: Classifier) -> Classifier:
    """A copy on the CPU that computes in float32 throughout, as the file will."""
    model = copy.deepcopy(classifier.model).cpu().eval()
    _backbone(model).autocast = None
    return replace(classifier, model=model, recordings=None)


def _network(
    classifier: Classifier, max_steps: int | None, fixed_steps: int | None
) -> tuple[nn.Module, tuple[str, ...]]:
    """What to trace, and what its outputs are called."""
    method, model, temperature = classifier.method, classifier.model, classifier.temperature
    if isinstance(method, Supervised):
        return OnePass(method, model, temperature), ("probabilities", "steps")
    if not isinstance(method, Iterative) or not isinstance(model, RecurrentClassifier):
        raise RicnetError(
            f"the method {method.name} cannot be exported: it neither answers at once nor steps as RIC does."
        )
    if fixed_steps is None:
        return Halting(method, model, max_steps or method.horizon, temperature), ("probabilities", "steps")
    return Unrolled(method, model, fixed_steps, temperature), ("beliefs", "steps", "values")


def _translate(network: nn.Module, example: Num[Tensor, "2 ..."], names: tuple[str, ...]) -> "ONNXProgram":
    try:
        with _quiet(), torch.no_grad():
            program = torch.export.export(
                network, (example,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), strict=True
            )
            if getattr(network.method, "readout", None) == "implied":
                program = program.run_decompositions({torch.ops.aten.polygamma.default: trigamma})
            names = names[: len(program.graph_signature.user_outputs)]
            dynamic = ({0: "batch"},)
            made = torch.onnx.export(
                program, input_names=["input"], output_names=names, dynamic_shapes=dynamic, dynamo=True, verbose=False
            )
    except Exception as error:  # whatever an encoder does that cannot be traced, torch has another exception for it
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise RicnetError(
            f"the network cannot be exported to ONNX ({reason}); an encoder of your own must be one that "
            "torch.export can trace for any batch size."
        ) from error
    assert made is not None
    return made


def _label(program: "ONNXProgram", metadata: dict[str, str]) -> None:
    """Our metadata in place of torch's, which tells of every node where in whose source code it came from."""
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    ClearMetadataAndDocStringPass()(program.model)
    program.model.metadata_props.clear()
    program.model.metadata_props.update(metadata)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch warns of its own deprecated calls, and that torchvision is not there, which nothing here needs."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _inputs_to_try(classifier: Classifier) -> Num[Tensor, "n ..."]:
    """The run's own examples, which are easy, hard and wrong; noise where it has none."""
    is_image = len(classifier.input_shape) == 3
    stored = None if classifier.folder is None else classifier.folder / "examples.npz"
    if stored is not None and stored.is_file():
        return read_npz_inputs(stored, classifier.input_shape, "image" if is_image else "features")
    size, random = (TRIED, *classifier.input_shape), torch.Generator().manual_seed(0)
    if is_image:
        return torch.randint(0, 256, size, dtype=torch.uint8, generator=random)
    backbone = _backbone(classifier.model)
    return backbone.mean + backbone.std * torch.randn(size, generator=random)


def _input_dtype(classifier: Classifier) -> torch.dtype:
    return torch.uint8 if len(classifier.input_shape) == 3 else torch.float32


def _backbone(model: nn.Module) -> Backbone:
    return next(module for module in model.modules() if isinstance(module, Backbone))
