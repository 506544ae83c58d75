"""Export of a trained classifier as one ONNX file, compared with PyTorch before it is written.

The file reads what the classifier reads (uint8 images, float features, int32 token ids); normalisation, the loop and
halting are in the graph, and what else a program needs is in its metadata. Without exits the loop is ONNX's `Loop`,
whose tensors keep their shapes: halted examples stay in the batch and keep their answer. With exits each step is an
`If`, which skips a stage that no example needs and computes it only for the examples that continue.
"""

import copy
import json
import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, Num
from torch import Tensor, nn

from ricnet.core.trajectory import Temperature, Trajectory
from ricnet.data import read_npz_inputs
from ricnet.errors import RicnetError, first_line, require, require_extra
from ricnet.io import write_atomically
from ricnet.methods import Supervised, in_steps
from ricnet.methods.inference import InSteps, Pool, Step, Steps, run
from ricnet.models.classifier import Classifier, backbone_of
from ricnet.models.config import AFTER_TRAINING
from ricnet.models.guarantees import exported_rules
from ricnet.version import __version__

if TYPE_CHECKING:
    from torch.onnx import ONNXProgram

Answer = tuple[Float[Tensor, "batch classes"], Int64[Tensor, "batch"]]
RANDOM_INPUTS = 16
"""Number of inputs to compare if the run has no examples."""
TOLERANCE = 1e-4
"""Largest difference of a probability from PyTorch's."""
SAME_STEPS = 0.9
"""Share of inputs that must halt at the same step as in PyTorch; rounding may move a value across the threshold."""


def export_onnx(
    classifier: Classifier, out: str | Path, max_steps: int | None = None, fixed_steps: int | None = None
) -> "Agreement":
    """Write the classifier to `out`, and return how well the file agrees with it.

    The file maps `input` to `probabilities` (batch, classes) and `steps` (batch,), at most `max_steps`; with exits also
    to `cost` (batch,), the share of compute. With `fixed_steps` it makes this many steps without a loop and returns
    `beliefs` (steps, batch, classes), `steps`, where each example would halt, and for RIC `values` (steps, batch).
    """
    require_extra("ric export", "onnx", "onnx", "onnxscript", "onnxruntime")
    classifier = float32_on_cpu(classifier)
    network, outputs = network_to_trace(classifier, max_steps, fixed_steps)
    program = translate(network, torch.zeros(2, *classifier.input_shape, dtype=classifier.input_dtype), outputs)
    label(program, metadata(classifier, network.steps))
    file: bytes = program.model_proto.SerializeToString()
    agreement = compare(file, classifier, inputs_to_compare(classifier))
    agreement.check()
    write_atomically(Path(out), lambda draft: draft.write_bytes(file))
    return agreement


def float32_on_cpu(classifier: Classifier) -> Classifier:
    """A copy that computes as the file does."""
    model = copy.deepcopy(classifier.model).cpu().eval()
    backbone_of(model).autocast = None
    return replace(classifier, model=model, recordings=None)


def metadata(classifier: Classifier, steps: int) -> dict[str, str]:
    """Metadata of the file: strings, and everything else as JSON."""
    method = classifier.method
    backbone = backbone_of(classifier.model)
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
    if classifier.view_shape != classifier.input_shape:  # the file itself cuts out the centre
        entry["view_shape"] = list(classifier.view_shape)
    if costs := getattr(classifier.model, "costs", ()):
        entry["costs"] = list(costs)
    entry |= {name: getattr(method, name) for name in AFTER_TRAINING if hasattr(method, name)}
    if classifier.columns is not None:  # the file reads numbers; its caller encodes the cells
        entry["columns"] = classifier.columns.to_json()
    if classifier.text is not None:
        entry["token_ids"] = classifier.text.rule
    if rules := exported_rules(classifier, steps):
        entry["prediction_sets"] = rules
    return {key: text if isinstance(text, str) else json.dumps(text, ensure_ascii=False) for key, text in entry.items()}


# The networks that are traced, for any batch size except 0: onnxruntime 1.31 gives an empty sum a wrong shape.


def network_to_trace(
    classifier: Classifier, max_steps: int | None, fixed_steps: int | None
) -> tuple["Traced", tuple[str, ...]]:
    """The network, and the names of its outputs."""
    require(max_steps is None or max_steps >= 1, "max_steps", max_steps, "at least 1")
    require(fixed_steps is None or fixed_steps >= 1, "fixed_steps", fixed_steps, "at least 1")
    if max_steps is not None and fixed_steps is not None:
        raise RicnetError("--max-steps and --fixed-steps exclude each other; leave one of them out.")
    method, model, temperature = classifier.method, classifier.model, classifier.temperature
    stepping = in_steps(classifier.inference, model)
    if stepping is None:
        if not isinstance(method, Supervised):
            raise RicnetError(
                f"the method {method.name} cannot be exported: it answers neither in one pass nor in steps."
            )
        if fixed_steps is not None:
            raise RicnetError(
                f"--fixed-steps {fixed_steps}: the method {method.name} has one step; leave the flag out."
            )
        return OnePass(method, model, 1, temperature), ("probabilities", "steps")
    if stepping.draws:
        raise RicnetError(
            f"this {method.name} model samples at inference, which an ONNX file cannot; "
            "export one with --feedback mean (RIC) or --halting median (PonderNet)."
        )
    steps, costs = fixed_steps or max_steps or stepping.horizon, getattr(model, "costs", ())
    steps = min(steps, len(costs)) if costs else steps
    if fixed_steps is not None:
        return Unrolled(stepping, model, steps, temperature), ("beliefs", "steps", "values")
    if costs:
        return WithExits(stepping, model, steps, temperature), ("probabilities", "steps", "cost")
    return Halting(stepping, model, steps, temperature), ("probabilities", "steps")


class Traced(nn.Module):
    """A network that answers in at most `steps` steps."""

    def __init__(self, method: Any, model: Any, steps: int, temperature: Temperature) -> None:
        super().__init__()
        self.method, self.model, self.steps, self.temperature = method, model, steps, temperature
        looks = model.backbone.example_outputs() if getattr(model, "costs", ()) else []
        self.shapes = [tuple(seen.shape[1:]) for seen, _ in looks]
        """Shape of one example after each stage, if the network has exits."""

    def start(self, inputs: Num[Tensor, "batch ..."]) -> Pool:
        """As `InSteps.start`, but encoded in one batch."""
        if self.model.has_exits:
            return self.method.start(self.model, inputs)  # type: ignore[no-any-return]
        return self.method.gather(self.model, self.model.context(inputs))  # type: ignore[no-any-return]

    def unrolled(self, inputs: Num[Tensor, "batch ..."], shapes: Sequence[tuple[int, ...]] = ()) -> Trajectory:
        """All steps, unrolled."""
        start = self.start(inputs)
        refinement: TracedRefinement
        refinement, _ = run(TracedRefinement(self.method, self.model, start, shapes), self.steps, halt=False)
        return refinement.path(start)

    def tempered(self, path: Trajectory) -> Trajectory:
        return path if self.temperature == 1 else path.tempered(self.temperature)

    def answer(self, path: Trajectory) -> Answer:
        """Probabilities at the halt, and the number of steps."""
        return self.tempered(path).final.exp(), path.halt_step


class OnePass(Traced):
    """Probabilities, and one step for each example."""

    def forward(self, inputs: Num[Tensor, "batch ..."]) -> Answer:
        log_beliefs = self.method.log_beliefs(self.model(inputs)).unsqueeze(0)
        return self.answer(Trajectory(log_beliefs, torch.ones_like(log_beliefs[0, :, 0], dtype=torch.int64)))


class Halting(Traced):
    """Probabilities at each example's halt, and its number of steps. `torch.while_loop` stands for `inference.run`."""

    def forward(self, inputs: Num[Tensor, "batch ..."]) -> Answer:
        pool = self.start(inputs)
        first = self.method.step(self.model, pool, first=True)
        time = torch.zeros((), dtype=torch.int64, device=inputs.device)
        made = written(Steps.blank(self.steps, pool), time, first)

        def unfinished(time: Int64[Tensor, ""], running: Bool[Tensor, "batch"], *_: Tensor) -> Bool[Tensor, ""]:
            return (time < self.steps) & running.any()

        def advance(
            time: Int64[Tensor, ""],
            running: Bool[Tensor, "batch"],
            thought: Float[Tensor, "batch size"],
            belief: Float[Tensor, "batch classes"],
            *rest: Tensor,
        ) -> tuple[Tensor, ...]:
            here = pool._replace(thought=thought, belief=belief, memory=rest[3:])
            step = self.method.step(self.model, here, first=False)
            memory = (tensor.clone() for tensor in step.pool.memory)  # a loop may not return its own inputs
            made = written(Steps(*rest[:3]), time, step)
            return time + 1, running & step.active, step.pool.thought, step.pool.belief, *made, *memory

        carried = (time + 1, first.active, first.pool.thought, first.pool.belief, *made, *first.pool.memory)
        ended = torch.while_loop(unfinished, advance, carried)
        return self.answer(self.method.trajectory(Steps(*ended[4:7])))


def written(made: Steps, time: Int64[Tensor, ""], step: Step) -> Steps:
    """A copy of `made` with the results of step `time`."""
    parts = zip(made, step[1:], strict=True)
    return Steps(*(whole.index_copy(0, time.view(1), part.unsqueeze(0)) for whole, part in parts))


class TracedRefinement(NamedTuple):
    """`inference.Refinement` in a traced graph: nothing is changed in place, and halted examples stay in the batch."""

    method: InSteps[Any]
    model: Any
    pool: Pool
    shapes: Sequence[tuple[int, ...]] = ()
    """As `Traced.shapes`, if examples leave at exits."""
    steps: tuple[Step, ...] = ()

    def advance(self, time: int) -> "TracedRefinement":
        step = step_with_exits(self, time) if self.shapes and time else self.method.advance(self.model, self.pool, time)
        return self._replace(pool=step.pool, steps=(*self.steps, step))

    def path(self, start: Pool) -> Trajectory:
        output, value, active = (torch.stack(part) for part in zip(*(step[1:] for step in self.steps), strict=True))
        first = self.method.first_value(self.model, start)
        if first is not None:
            value = torch.cat([first.unsqueeze(0), value[:-1]])
        return self.method.conclude(self.model, Steps(output, value, active), halt=False)


def step_with_exits(refinement: TracedRefinement, time: int) -> Step:
    """Take the examples that continue out of the batch, advance them and put them back. The rest of the batch is zeros,
    which are not read; if no example continues, all are zeros."""

    def some(active: Bool[Tensor, "batch"], *state: Tensor) -> tuple[Tensor, ...]:
        rows = active.nonzero().squeeze(1)
        torch._check(len(rows) > 0)  # a hint for torch.export
        made = refinement.method.advance(refinement.model, pool.with_tensors(state).take(rows), time)
        return tuple(
            part.new_zeros(len(active), *part.shape[1:]).index_copy(0, rows, part)
            for part in (*made.pool.tensors, *made[1:])
        )

    def none(active: Bool[Tensor, "batch"], *state: Tensor) -> tuple[Tensor, ...]:
        *parts, seen = state
        shape = refinement.shapes[time // refinement.model.backbone.steps_per_exit]
        step = (torch.zeros_like(state[2]), torch.zeros_like(state[2][:, 0]), torch.zeros_like(active))
        return *(torch.zeros_like(part) for part in parts), seen.new_zeros(len(active), *shape), *step

    pool, active = refinement.pool._replace(heads=None), refinement.steps[-1].active  # branches take tensors only
    *state, output, value, active = torch.cond(active.any(), some, none, (active, *pool.tensors))
    return Step(pool.with_tensors(state), output, value, active)


class Unrolled(Traced):
    """Beliefs of every step, where each example would halt, and values if the method has them.

    The steps are plain operators, for runtimes without `Loop`.
    """

    def forward(self, inputs: Num[Tensor, "batch ..."]) -> tuple[Tensor, ...]:
        path = self.tempered(self.unrolled(inputs))
        beliefs = path.log_beliefs.exp()
        return (beliefs, path.halt_step) if path.values is None else (beliefs, path.halt_step, path.values)


class WithExits(Traced):
    """With exits: probabilities at each example's halt, its number of steps, and its share of compute."""

    def forward(
        self, inputs: Num[Tensor, "batch ..."]
    ) -> tuple[Float[Tensor, "batch classes"], Int64[Tensor, "batch"], Float[Tensor, "batch"]]:
        path = self.unrolled(inputs, self.shapes)
        assert path.cost is not None
        return *self.answer(path), path.cost


def trigamma(order: int, x: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """ψ'(x) for x > 0, for the `implied` readout; ONNX has no such operator. `order` is always 1.

    ψ'(x) = 1/x² + ψ'(x + 1) six times, then five terms of the series in 1/x, whose error is below 4e-9 for x ≥ 6.
    """
    near = torch.stack([(x + shift).square().reciprocal() for shift in range(6)]).sum(0)
    far = (x + 6).reciprocal()
    square = far.square()
    return near + far * (1 + far / 2 + square * (1 / 6 - square * (1 / 30 - square / 42)))


# From PyTorch to a file.


def translate(network: Traced, example: Num[Tensor, "2 ..."], outputs: tuple[str, ...]) -> "ONNXProgram":
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # of torch.onnx, onnx_ir (empty axes) and onnxscript (constants)
    try:
        with warnings.catch_warnings(action="ignore"), torch.no_grad():
            program = torch.export.export(
                network, (example,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), strict=True
            )
            if getattr(network.method, "readout", None) == "implied":
                program = program.run_decompositions({torch.ops.aten.polygamma.default: trigamma})
            made = torch.onnx.export(
                program,
                input_names=["input"],
                output_names=outputs[: len(program.graph_signature.user_outputs)],
                dynamic_shapes=({0: "batch"},),
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # torch raises many types
        raise RicnetError(
            f"the network cannot be exported to ONNX ({first_line(error)}); an encoder of your own must be one that "
            "torch.export can trace for any batch size."
        ) from error
    finally:
        logging.disable(disabled)
    assert made is not None
    return made


def label(program: "ONNXProgram", properties: dict[str, str]) -> None:
    """Replace torch's metadata, which names local source files, by ours."""
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    ClearMetadataAndDocStringPass()(program.model)
    for graph in program.model.graphs():  # unused ones, of which onnxruntime warns
        for initializer in [*graph.initializers.values()]:
            if not initializer.uses() and not initializer.is_graph_output():
                graph.initializers.pop(str(initializer.name))
    program.model.metadata_props.clear()
    program.model.metadata_props.update(properties)


# Agreement with PyTorch.


@dataclass(frozen=True)
class Agreement:
    inputs: int
    same_steps: int
    """Inputs that halt at the same step."""
    difference: float
    """Largest difference of a probability among them."""

    def check(self) -> None:
        if not self.difference <= TOLERANCE or self.same_steps < SAME_STEPS * self.inputs:
            raise RicnetError(
                f"the exported network does not agree with PyTorch ({self.same_steps} of {self.inputs} inputs halt at "
                f"the same step, their probabilities differ by up to {self.difference:.1e}), so no file is written; "
                "please report this bug."
            )


def compare(file: bytes | Path, classifier: Classifier, inputs: Num[Tensor, "n ..."]) -> Agreement:
    """Compare with a `classifier` on the CPU in float32; a file of fixed steps at every step."""
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    max_steps = int(session.get_modelmeta().custom_metadata_map["max_steps"])
    answer, steps, *_ = session.run(None, {"input": inputs.numpy()})
    halts = answer.ndim == 2
    path = classifier.refine(inputs, max_steps, halt=halts)
    expected = (path.final if halts else path.log_beliefs).exp().numpy()
    same = steps == path.halt_step.numpy()
    gap = np.abs(answer - expected)[..., same, :]
    return Agreement(len(inputs), int(same.sum()), float(gap.max(initial=0.0)))


def inputs_to_compare(classifier: Classifier) -> Num[Tensor, "n ..."]:
    """The examples of the run, else noise of the scale of the data."""
    stored = None if classifier.folder is None else classifier.folder / "examples.npz"
    if stored is not None and stored.is_file():
        return read_npz_inputs(stored, classifier.input_shape, classifier.kind)
    size, random = (RANDOM_INPUTS, *classifier.input_shape), torch.Generator().manual_seed(0)
    if classifier.kind == "image":
        return torch.randint(0, 256, size, dtype=torch.uint8, generator=random)
    backbone = backbone_of(classifier.model)
    if classifier.kind == "tokens":
        known: Any = backbone.reader.vocabulary
        return torch.randint(0, int(known), size, dtype=torch.int32, generator=random)
    return backbone.mean + backbone.std * torch.randn(size, generator=random)
