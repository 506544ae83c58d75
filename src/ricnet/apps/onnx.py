"""A trained classifier as one ONNX file, compared with PyTorch before it is written.

Inputs are what the classifier reads (uint8 images, float features, int32 token ids): normalisation is in the graph, and
so is the loop that stops by itself. Everything else a program needs to know stands in the file's metadata.

The number of steps depends on the input, so the loop has to be an operator of the graph, not Python's:
`torch.while_loop` becomes ONNX's `Loop`. Its tensors keep their shapes, so nobody leaves the batch before its end: an
example that has stopped keeps its answer while others go on, and the loop ends with the last of them.

With exits the steps differ, so each is an `If`: what no example of a batch needs is skipped, and of a stage that some
need only they are computed.
"""

import contextlib
import copy
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, Num
from torch import Tensor, nn

from ricnet.core.trajectory import Temperature, Trajectory
from ricnet.data import read_npz_inputs
from ricnet.errors import RicnetError, first_line, require, require_extra
from ricnet.io import write_atomically
from ricnet.methods import Supervised, in_steps
from ricnet.methods.iterative import InSteps, Pool, Step, Steps
from ricnet.training.classifier import Classifier, backbone_of
from ricnet.training.config import AFTER_TRAINING
from ricnet.version import __version__

if TYPE_CHECKING:
    from torch.onnx import ONNXProgram

RANDOM_INPUTS = 16
"""How many to compare on where the run has no examples."""
TOLERANCE = 1e-4
"""How far a probability may be from PyTorch's."""
SAME_STEPS = 0.9
"""Fraction of inputs that must halt where they do in PyTorch. A value that is almost at the threshold may fall on its
other side by rounding alone."""


def export_onnx(
    classifier: Classifier, out: str | Path, max_steps: int | None = None, fixed_steps: int | None = None
) -> "Agreement":
    """Write the classifier to `out`, and say how well the file agrees with it.

    The file takes `input` and gives `probabilities` (batch, classes) and `steps` (batch,): each example stops by
    itself, after `max_steps` at the latest. Where there are exits it gives `cost` (batch,) too, the share of compute.
    With `fixed_steps` all make so many, without a loop, and it gives `beliefs` (steps, batch, classes), `steps`, where
    each would stop, and for RIC `values` (steps, batch).
    """
    require_extra("ric export", "onnx", "onnx", "onnxscript", "onnxruntime")
    check_exportable(classifier, max_steps, fixed_steps)
    classifier = float32_on_cpu(classifier)
    network, outputs = network_to_trace(classifier, max_steps, fixed_steps)
    program = translate(network, torch.zeros(2, *classifier.input_shape, dtype=classifier.input_dtype), outputs)
    label(program, metadata(classifier, getattr(network, "steps", 1)))
    file: bytes = program.model_proto.SerializeToString()
    agreement = compare(file, classifier, inputs_to_compare(classifier))
    agreement.check()
    write_atomically(Path(out), lambda draft: draft.write_bytes(file))
    return agreement


def check_exportable(classifier: Classifier, max_steps: int | None, fixed_steps: int | None) -> None:
    method, stepping = classifier.method, in_steps(classifier.asked, classifier.model)
    require(max_steps is None or max_steps >= 1, "max_steps", max_steps, "at least 1")
    require(fixed_steps is None or fixed_steps >= 1, "fixed_steps", fixed_steps, "at least 1")
    if max_steps is not None and fixed_steps is not None:
        raise RicnetError("--max-steps and --fixed-steps exclude each other; leave one of them out.")
    if fixed_steps is not None and stepping is None and isinstance(method, Supervised):
        raise RicnetError(f"--fixed-steps {fixed_steps}: the method {method.name} has one step; leave the flag out.")
    if stepping is not None and stepping.draws:
        raise RicnetError(
            f"this {method.name} model draws at random when it answers, which a file cannot; "
            "export one with --feedback mean (RIC) or --halting median (PonderNet)."
        )


def float32_on_cpu(classifier: Classifier) -> Classifier:
    """A copy that computes as the file will."""
    model = copy.deepcopy(classifier.model).cpu().eval()
    backbone_of(model).autocast = None
    return replace(classifier, model=model, recordings=None)


def metadata(classifier: Classifier, steps: int) -> dict[str, str]:
    """Text as it is, everything else as JSON."""
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
    if costs := getattr(classifier.model, "costs", ()):
        entry["costs"] = list(costs)
    entry |= {name: getattr(method, name) for name in AFTER_TRAINING if hasattr(method, name)}
    if classifier.columns is not None:  # the file reads numbers; whoever feeds it encodes the cells
        entry["columns"] = classifier.columns.to_json()
    if classifier.text is not None:
        entry["token_ids"] = classifier.text.rule
    return {key: text if isinstance(text, str) else json.dumps(text, ensure_ascii=False) for key, text in entry.items()}


# The networks that are traced, for batches of any size but 0: onnxruntime 1.31 gives a sum over none a wrong shape.


def network_to_trace(
    classifier: Classifier, max_steps: int | None, fixed_steps: int | None
) -> tuple[nn.Module, tuple[str, ...]]:
    """And what its outputs are called."""
    method, model, temperature = classifier.method, classifier.model, classifier.temperature
    stepping = in_steps(classifier.asked, model)
    if stepping is None and isinstance(method, Supervised):
        return OnePass(method, model, temperature), ("probabilities", "steps")
    if stepping is None:
        raise RicnetError(
            f"the method {method.name} cannot be exported: it neither answers at once nor steps as RIC does."
        )
    steps, costs = fixed_steps or max_steps or stepping.horizon, getattr(model, "costs", ())
    steps = min(steps, len(costs)) if costs else steps  # there is nothing to see after the last exit
    if fixed_steps is not None:
        return Unrolled(stepping, model, steps, temperature), ("beliefs", "steps", "values")
    if costs:
        return Leaving(stepping, model, steps, temperature), ("probabilities", "steps", "cost")
    return Halting(stepping, model, steps, temperature), ("probabilities", "steps")


class OnePass(nn.Module):
    """Probabilities, and one step for each."""

    def __init__(self, method: Supervised, model: nn.Module, temperature: Temperature) -> None:
        super().__init__()
        self.method, self.model, self.temperature = method, model, temperature

    def forward(
        self, inputs: Num[Tensor, "batch ..."]
    ) -> tuple[Float[Tensor, "batch classes"], Int64[Tensor, "batch"]]:
        log_beliefs = self.method.log_beliefs(self.model(inputs)).unsqueeze(0)
        path = Trajectory(log_beliefs, torch.ones_like(log_beliefs[0, :, 0], dtype=torch.int64))
        return tempered(path, self.temperature).final.exp(), path.halt_step


class Halting(nn.Module):
    """Probabilities at each example's own halt, `steps` steps at the latest, and how many it took."""

    def __init__(self, method: InSteps[Any], model: Any, steps: int, temperature: Temperature) -> None:
        super().__init__()
        self.method, self.model, self.steps, self.temperature = method, model, steps, temperature

    def forward(
        self, inputs: Num[Tensor, "batch ..."]
    ) -> tuple[Float[Tensor, "batch classes"], Int64[Tensor, "batch"]]:
        pool = self.method.gather(self.model, self.model.context(inputs))
        first = self.method.step(self.model, pool, first=True)
        time = torch.zeros((), dtype=torch.int64, device=inputs.device)
        made = written(Steps.blank(self.steps, pool), time, first)

        def unfinished(time: Int64[Tensor, ""], running: Bool[Tensor, "batch"], *_: Tensor) -> Bool[Tensor, ""]:
            return (time < self.steps) & running.any()

        def go_on(
            time: Int64[Tensor, ""],
            running: Bool[Tensor, "batch"],
            thought: Float[Tensor, "batch size"],
            belief: Float[Tensor, "batch classes"],
            *rest: Tensor,
        ) -> tuple[Tensor, ...]:
            here = pool._replace(thought=thought, belief=belief, memory=rest[3:])
            step = self.method.step(self.model, here, first=False)
            memory = (tensor.clone() for tensor in step.pool.memory)  # a loop may not hand on what it was handed
            made = written(Steps(*rest[:3]), time, step)
            return time + 1, running & step.going, step.pool.thought, step.pool.belief, *made, *memory

        carried = (time + 1, first.going, first.pool.thought, first.pool.belief, *made, *first.pool.memory)
        ended = torch.while_loop(unfinished, go_on, carried)
        path = self.method.trajectory(Steps(*ended[4:7]))
        return tempered(path, self.temperature).final.exp(), path.halt_step


class Leaving(nn.Module):
    """As `Halting`, of a network with exits, and what each example has cost.

    All tensors have room for the whole batch. A step takes out those that are going, sees a stage more of them and puts
    them back; of the others it leaves zeros, which nothing reads. Where none is going there are only zeros.
    """

    def __init__(self, method: InSteps[Any], model: Any, steps: int, temperature: Temperature) -> None:
        super().__init__()
        self.method, self.model, self.steps, self.temperature = method, model, steps, temperature
        self.shapes = shapes_seen(model)

    def forward(
        self, inputs: Num[Tensor, "batch ..."]
    ) -> tuple[Float[Tensor, "batch classes"], Int64[Tensor, "batch"], Float[Tensor, "batch"]]:
        start = self.method.start(self.model, inputs)
        steps = [next_step(self.method, self.model, start, 0)]
        for time in range(1, self.steps):
            steps.append(self.go_on(time, steps[-1]))
        path = path_of(self.method, self.model, start, steps)
        assert path.cost is not None
        return tempered(path, self.temperature).final.exp(), path.halt_step, path.cost

    def go_on(self, time: int, last: Step) -> Step:
        def some(going: Bool[Tensor, "batch"], *state: Tensor) -> tuple[Tensor, ...]:
            rows = going.nonzero().squeeze(1)
            torch._check(len(rows) > 0)  # known here, but not to torch
            made = next_step(self.method, self.model, as_pool(state).take(rows), time)
            return tuple(
                part.new_zeros(len(going), *part.shape[1:]).index_copy(0, rows, part)
                for part in (*as_tensors(made.pool), *made[1:])
            )

        def none(going: Bool[Tensor, "batch"], seen: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
            shape = self.shapes[time // self.model.backbone.steps_per_exit]
            step = (torch.zeros_like(state[2]), torch.zeros_like(state[2][:, 0]), torch.zeros_like(going))
            return seen.new_zeros(len(going), *shape), *(torch.zeros_like(part) for part in state), *step

        *state, output, value, going = torch.cond(last.going.any(), some, none, (last.going, *as_tensors(last.pool)))
        return Step(as_pool(state), output, value, going)


def shapes_seen(model: Any) -> list[tuple[int, ...]]:
    """What each stage makes of one input."""
    return [tuple(seen.shape[1:]) for seen, _ in model.backbone.walk_once()]


def as_tensors(pool: Pool) -> tuple[Tensor, ...]:
    """A branch of a graph takes and gives tensors only."""
    assert pool.seen is not None
    return pool.seen, pool.context, pool.thought, pool.belief, *pool.memory


def as_pool(tensors: Sequence[Tensor]) -> Pool:
    seen, context, thought, belief, *memory = tensors
    return Pool(context, thought, belief, tuple(memory), seen=seen)


def next_step(method: InSteps[Any], model: Any, pool: Pool, time: int) -> Step:
    """As `InSteps.advance`, but the look is one for all rows: a graph does not know how many there are."""
    if model.has_exits and time % model.backbone.steps_per_exit == 0:
        assert pool.seen is not None
        seen, context = method.look(model, time // model.backbone.steps_per_exit, pool.seen)
        pool = pool._replace(seen=seen, context=context)
    return method.step(model, pool, first=time == 0)


def path_of(method: InSteps[Any], model: Any, start: Pool, steps: Sequence[Step]) -> Trajectory:
    output, value, going = (torch.stack(part) for part in zip(*(step[1:] for step in steps), strict=True))
    first = method.first_value(model, start)
    if first is not None:
        value = torch.cat([first.unsqueeze(0), value[:-1]])
    return method.conclude(model, Steps(output, value, going), halt=False)


class Unrolled(nn.Module):
    """The beliefs of every step, where each example would halt, and the values where the method has them.

    Steps follow one another as plain operators, for runtimes without `Loop`.
    """

    def __init__(self, method: InSteps[Any], model: Any, steps: int, temperature: Temperature) -> None:
        super().__init__()
        self.method, self.model, self.steps, self.temperature = method, model, steps, temperature

    def forward(self, inputs: Num[Tensor, "batch ..."]) -> tuple[Tensor, ...]:
        if self.model.has_exits:
            start = self.method.start(self.model, inputs)
        else:
            start = self.method.gather(self.model, self.model.context(inputs))
        steps = [next_step(self.method, self.model, start, 0)]
        for time in range(1, self.steps):
            steps.append(next_step(self.method, self.model, steps[-1].pool, time))
        path = tempered(path_of(self.method, self.model, start, steps), self.temperature)
        beliefs = path.log_beliefs.exp()
        return (beliefs, path.halt_step) if path.values is None else (beliefs, path.halt_step, path.values)


def written(made: Steps, time: Int64[Tensor, ""], step: Step) -> Steps:
    """As `Steps.write`, but on a copy: a graph changes nothing in place."""
    parts = zip(made, step[1:], strict=True)
    return Steps(*(whole.index_copy(0, time.view(1), part.unsqueeze(0)) for whole, part in parts))


def tempered(path: Trajectory, temperature: Temperature) -> Trajectory:
    return path if temperature == 1 else path.tempered(temperature)


def trigamma(order: int, x: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """ψ'(x) for x > 0, which the `implied` readout needs and ONNX has no operator for; `order` is always 1.

    ψ'(x) = 1/x² + ψ'(x + 1), six times, and then five terms of the series in 1/x, off by less than 4e-9 from 6 on.
    """
    near = torch.stack([(x + shift).square().reciprocal() for shift in range(6)]).sum(0)
    far = (x + 6).reciprocal()
    square = far.square()
    return near + far * (1 + far / 2 + square * (1 / 6 - square * (1 / 30 - square / 42)))


# From PyTorch to a file.


def translate(network: nn.Module, example: Num[Tensor, "2 ..."], outputs: tuple[str, ...]) -> "ONNXProgram":
    try:
        with quiet(), torch.no_grad():
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
    except Exception as error:  # whatever an encoder does that cannot be traced, torch has another exception for it
        raise RicnetError(
            f"the network cannot be exported to ONNX ({first_line(error)}); an encoder of your own must be one that "
            "torch.export can trace for any batch size."
        ) from error
    assert made is not None
    return made


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """torch warns of its own deprecated calls, and that torchvision is missing, which nothing here needs; onnx_ir of
    lists of axes that are empty; onnxscript of constants that it leaves to be computed."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnx_ir", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def label(program: "ONNXProgram", properties: dict[str, str]) -> None:
    """Our metadata in place of torch's, which names source files of this machine for every node."""
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    ClearMetadataAndDocStringPass()(program.model)
    for graph in program.model.graphs():  # what branches were traced with and do not need; onnxruntime warns of it
        for initializer in [*graph.initializers.values()]:
            if not initializer.uses() and not initializer.is_graph_output():
                graph.initializers.pop(str(initializer.name))
    program.model.metadata_props.clear()
    program.model.metadata_props.update(properties)


# Whether the file answers as the classifier does.


@dataclass(frozen=True)
class Agreement:
    inputs: int
    same_steps: int
    """How many halt at the same step."""
    difference: float
    """The largest in any probability, of those that halt at the same step."""

    def check(self) -> None:
        if not self.difference <= TOLERANCE or self.same_steps < SAME_STEPS * self.inputs:
            raise RicnetError(
                f"the exported network does not agree with PyTorch ({self.same_steps} of {self.inputs} inputs halt "
                f"where they should, with probabilities {self.difference:.1e} off) and is not written; tell us, please."
            )


def compare(file: bytes | Path, classifier: Classifier, inputs: Num[Tensor, "n ..."]) -> Agreement:
    """`classifier` on the CPU, in float32. A file of fixed steps is compared at every step."""
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
    """The run's own examples, some of them easy, hard and wrong; noise of the data's scale where it has none."""
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
