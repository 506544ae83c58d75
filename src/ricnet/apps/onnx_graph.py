"""What an exported file computes: networks that `torch.export` can trace for any number of inputs at once.

The number of steps depends on the input, so the loop over them has to be an operator of the graph, not Python's.
`torch.while_loop` becomes ONNX's `Loop`. Its tensors keep their shapes, so nobody leaves the batch before its end: an
example that has stopped keeps its answer while others go on, and the loop ends with the last of them.
"""

import torch
from jaxtyping import Bool, Float, Int64, Num
from torch import Tensor, nn

from ricnet.core.trajectory import Trajectory
from ricnet.methods import Supervised
from ricnet.methods.iterative import Iterative, Step, Steps
from ricnet.nets.refiner import RecurrentClassifier

Answer = tuple[Float[Tensor, "batch classes"], Int64[Tensor, "batch"]]


class OnePass(nn.Module):
    """Probabilities, and one step for each."""

    def __init__(self, method: Supervised, model: nn.Module, temperature: float) -> None:
        super().__init__()
        self.method, self.model, self.temperature = method, model, temperature

    def forward(self, inputs: Num[Tensor, "batch ..."]) -> Answer:
        log_beliefs = self.method.log_beliefs(self.model(inputs)).unsqueeze(0)
        path = Trajectory(log_beliefs, torch.ones_like(log_beliefs[0, :, 0], dtype=torch.int64))
        return _answer(path, self.temperature)


class Halting(nn.Module):
    """Probabilities at each example's own halt, `steps` steps at the latest, and how many it took."""

    def __init__(self, method: Iterative, model: RecurrentClassifier, steps: int, temperature: float) -> None:
        super().__init__()
        self.method, self.model, self.steps, self.temperature = method, model, steps, temperature

    def forward(self, inputs: Num[Tensor, "batch ..."]) -> Answer:
        pool = self.method.gather(self.model, self.model.context(inputs))
        first = self.method.step(self.model, pool, first=True)
        time = torch.zeros((), dtype=torch.int64, device=inputs.device)
        made = _written(Steps.blank(self.steps, pool), time, first)

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
            made = _written(Steps(*rest[:3]), time, step)
            return time + 1, running & step.going, step.pool.thought, step.pool.belief, *made, *memory

        carried = (time + 1, first.going, first.pool.thought, first.pool.belief, *made, *first.pool.memory)
        ended = torch.while_loop(unfinished, go_on, carried)
        return _answer(self.method.trajectory(Steps(*ended[4:7])), self.temperature)


class Unrolled(nn.Module):
    """The beliefs of every step, where each example would halt, and the values where the method has them.

    Steps follow one another as plain operators, for runtimes without `Loop`.
    """

    def __init__(self, method: Iterative, model: RecurrentClassifier, steps: int, temperature: float) -> None:
        super().__init__()
        self.method, self.model, self.steps, self.temperature = method, model, steps, temperature

    def forward(self, inputs: Num[Tensor, "batch ..."]) -> tuple[Tensor, ...]:
        pool = self.method.gather(self.model, self.model.context(inputs))
        steps = []
        for time in range(self.steps):
            steps.append(self.method.step(self.model, pool, first=time == 0))
            pool = steps[-1].pool
        output, value, going = (torch.stack(part) for part in zip(*(step[1:] for step in steps), strict=True))
        path = _tempered(self.method.trajectory(Steps(output, value, going)), self.temperature)
        beliefs = path.log_beliefs.exp()
        return (beliefs, path.halt_step) if path.values is None else (beliefs, path.halt_step, path.values)


def trigamma(order: int, x: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """ψ'(x) for x > 0, which the `implied` readout needs and ONNX has no operator for; `order` is always 1.

    ψ'(x) = 1/x² + ψ'(x + 1), six times, and then five terms of the series in 1/x, off by less than 4e-9 from 6 on.
    """
    near = torch.stack([(x + shift).square().reciprocal() for shift in range(6)]).sum(0)
    far = (x + 6).reciprocal()
    square = far.square()
    return near + far * (1 + far / 2 + square * (1 / 6 - square * (1 / 30 - square / 42)))


def _written(made: Steps, time: Int64[Tensor, ""], step: Step) -> Steps:
    """As `Steps.write`, but of a new copy: a graph changes nothing in place."""
    parts = zip(made, step[1:], strict=True)
    return Steps(*(whole.index_copy(0, time.view(1), part.unsqueeze(0)) for whole, part in parts))


def _answer(path: Trajectory, temperature: float) -> Answer:
    return _tempered(path, temperature).final.exp(), path.halt_step


def _tempered(path: Trajectory, temperature: float) -> Trajectory:
    return path if temperature == 1 else path.tempered(temperature)
