"""One update of the weights: the gradient of a minibatch, in parts and over several processes, the optimizer and its
learning rate; compiled, and on a GPU recorded as a CUDA graph, with the same results."""

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ricnet.distributed import Shard
from ricnet.errors import RicnetError, setting
from ricnet.methods import Method
from ricnet.methods.method import Batch, Metrics
from ricnet.models.classifier import backbone_of, learned
from ricnet.models.config import Optimization
from ricnet.models.recorded import WARM_UP, capture
from ricnet.nets.backbone import Backbone
from ricnet.nets.encoders import ResNet
from ricnet.training.muon import Muon, muon_matrices
from ricnet.training.recipes import WORTH_COMPILING

if TYPE_CHECKING:
    from ricnet.training.trainer import Trainer

SPECIAL_CASES = 64
"""Variants of one function (shapes, strides, with gradient or without) that torch may compile before it gives up."""
AnyMethod = TypeVar("AnyMethod", bound=Method[Any])
Loss = tuple[Float[Tensor, ""], Metrics]


class Gradient:
    """Adds the gradient of a minibatch, of which this process has a shard, to `.grad` of the network.

    A loss calls more than the network's own forward, so DistributedDataParallel wraps a module whose forward is the
    loss.
    """

    def __init__(self, method: Method[Any], model: nn.Module, snapshot: nn.Module, shard: Shard, parts: int) -> None:
        self.method, self.model, self.snapshot, self.shard, self.parts = method, model, snapshot, shard, parts
        self.several = shard.processes.count > 1
        refuse_thin_parts(shard, parts)
        self.next_loss: Any = NextLoss(model)
        if self.several:
            self.next_loss = DistributedDataParallel(self.next_loss)

    def __call__(self, batch: Batch) -> Metrics:
        """The loss and the other metrics of the whole minibatch."""
        if not self.several and self.parts == 1:
            loss, metrics = self.method.loss(self.model, self.snapshot, *batch)
            loss.backward()
            return {"loss": loss.detach(), **metrics}
        parts = list(zip(*(tensor.tensor_split(self.parts) for tensor in batch), strict=True))
        losses = self.method.losses(self.model, self.snapshot, parts, self.shard if self.several else None)
        logged: list[Tensor] = []
        for position, part in enumerate(parts, 1):
            weight = len(part[0]) / self.shard.rows
            with self._no_sync(position < len(parts)):
                loss, metrics = self.next_loss(losses)
                # DistributedDataParallel averages gradients over processes; their sum is needed
                (loss * (weight * self.shard.processes.count)).backward()
            logged.append(weight * torch.stack([metric.float() for metric in (loss.detach(), *metrics.values())]))
        if self.several:
            _average_statistics(self.model, self.shard)
        means = self.shard.processes.all_reduce(torch.stack(logged).sum(0))
        return dict(zip(["loss", *metrics], means.unbind(), strict=True))

    def _no_sync(self, more: bool) -> AbstractContextManager[None]:
        """Gradients are sent once, with the last part."""
        silent: AbstractContextManager[None] = self.next_loss.no_sync() if self.several and more else nullcontext()
        return silent


class NextLoss(nn.Module):
    """The next of an iterator of losses, as the forward of a module that has all parameters they depend on."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, losses: Iterator[Loss]) -> Loss:
        return next(losses)


@contextmanager
def tensor_cores() -> Iterator[None]:
    """Allow TF32 in products of float32 matrices, which makes the refiner's many times faster on a GPU. The setting is
    global to the process, so it is not used on a CPU, where several threads may train.

    The rounding of a factor does not depend on how a product is split up, so roll-out and replay still agree.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def refuse_thin_parts(shard: Shard, parts: int) -> None:
    """Batch norm needs at least two rows in every part of a minibatch."""
    pieces = shard.processes.count * parts
    if pieces > 1 and shard.rows < 2 * pieces:
        raise RicnetError(
            f"a minibatch of {shard.rows} cannot be shared by {shard.processes.count} processes in {parts} parts each: "
            f"every part needs two rows; raise {setting('batch_size')}, or lower {setting('accumulate')} or the "
            "number of processes."
        )


@torch.no_grad()
def _average_statistics(model: nn.Module, shard: Shard) -> None:
    """Average the running statistics of batch norm over processes: each has seen only its own rows."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    seen = [mean for norm in norms for mean in (norm.running_mean, norm.running_var) if mean is not None]
    if not seen:
        return
    flat = torch.cat([mean.flatten() for mean in seen]) / shard.processes.count
    parts = shard.processes.all_reduce(flat).split([mean.numel() for mean in seen])
    torch._foreach_copy_(seen, [part.view_as(mean) for part, mean in zip(parts, seen, strict=True)])


def rate_factor(update: int, total: int, warmup: int, schedule: str, end: float = 0.0) -> float:
    """Factor of the learning rate at an update counted from 0: linear warm-up over at most half of all updates, then
    constant, or a cosine or a line from 1 to `end`."""
    warmup = min(warmup, total // 2)
    if update < warmup:
        return (update + 1) / warmup
    if schedule == "constant":
        return 1.0
    progress = (update - warmup) / max(1, total - warmup)
    return end + (1 - end) * (1 - progress if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * progress)))


def make_optimizer(model: nn.Module, settings: Optimization, device: torch.device) -> torch.optim.Optimizer:
    """Adam and SGD decay all parameters, as in the paper; the others do not decay biases and normalisation.

    All are fused, one call for all parameters. On a GPU the rate is a tensor there, so that a recorded update can be
    replayed at another rate.
    """
    on_gpu = device.type == "cuda"
    decay = settings.weight_decay
    rate = torch.tensor(settings.lr, dtype=torch.float32, device=device) if on_gpu else settings.lr
    groups = [{**group, "lr": rate.clone() if isinstance(rate, Tensor) else rate} for group in _groups(model, settings)]
    if settings.optimizer == "muon":
        return Muon(groups, rate, settings.momentum, decay)
    if settings.optimizer in ("sgd", "nesterov"):
        nesterov = settings.optimizer == "nesterov"
        return torch.optim.SGD(groups, rate, settings.momentum, 0, decay, nesterov, fused=True)
    if settings.optimizer == "adam":
        return torch.optim.Adam(groups, rate, weight_decay=decay, capturable=on_gpu, fused=True)
    return torch.optim.AdamW(groups, rate, weight_decay=decay, capturable=on_gpu, fused=True)


def _groups(model: nn.Module, settings: Optimization) -> list[dict[str, Any]]:
    """Parameter groups: new and pretrained parameters have different learning rates. Vectors get no weight decay,
    except with Adam and SGD."""
    pretrained = [m.features for m in model.modules() if isinstance(m, Backbone) and m.features is not None]
    trained = {parameter for module in pretrained for parameter in module.parameters()}
    new = [p for p in model.parameters() if p not in trained]
    old = [p for p in model.parameters() if p in trained and p.requires_grad]
    groups: list[dict[str, Any]] = []
    for parameters, share in ((new, 1.0), (old, settings.encoder_lr)):
        if not parameters:
            continue
        if settings.optimizer == "muon":
            matrices = [p for module in model.modules() if isinstance(module, Backbone) for p in muon_matrices(module)]
            groups.append({"params": [p for p in parameters if p in set(matrices)], "share": share, "muon": True})
            parameters = [p for p in parameters if p not in set(matrices)]
        elif settings.optimizer in ("adam", "sgd"):
            groups.append({"params": parameters, "share": share})
            continue
        matrices, vectors = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim <= 1]
        groups += [{"params": matrices, "share": share}, {"params": vectors, "weight_decay": 0.0, "share": share}]
    return groups


def clip_gradient(parameters: Sequence[nn.Parameter], limit: float | None) -> Float[Tensor, ""]:
    """Scale gradients down to a norm of at most `limit`, if given, and return the norm before. On a CPU,
    gradients within the limit are left alone instead of multiplied by 1."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients or gradients[0].is_cuda:
        return nn.utils.clip_grad_norm_(parameters, math.inf if limit is None else limit)
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if limit is not None and norm > limit:
        torch._foreach_mul_(gradients, limit / (norm + 1e-6))
    return norm


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of each group to its share of `rate`; on a GPU each group has a tensor of its own."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate * group["share"])
        else:
            group["lr"] = rate * group["share"]


def restore_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Load a state in place where the optimizer has tensors already: a recorded update writes into those."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not optimizer.state:
        own = [{name: value for name, value in g.items() if name != "params"} for g in optimizer.param_groups]
        groups = [{**theirs, **ours} for theirs, ours in zip(saved["param_groups"], own, strict=True)]
        # keep the settings of this device: those of a GPU are `capturable`
        optimizer.load_state_dict({**saved, "param_groups": groups})
        return
    for index, entries in saved["state"].items():
        for name, value in entries.items():
            optimizer.state[parameters[index]][name].copy_(value)


def reset_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Set its state to zero in place, as before the first update."""
    for entries in optimizer.state.values():
        for tensor in entries.values():
            tensor.zero_()


class Averaging:
    """An exponential moving average of the weights, which is evaluated and saved in their place."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = model, decay
        self.network = copy.deepcopy(model).requires_grad_(False) if decay else model
        self.updates = torch.zeros((), device=next(model.parameters()).device)
        self.pair = learned(self.network), learned(model)

    @torch.no_grad()
    def follow(self) -> None:
        """Move the average towards the weights, faster at first, when it still holds the initial ones. Part of the
        update, so that a CUDA graph records it."""
        if not self.decay:
            return
        self.updates.add_(1)
        share = (9 / (9 + self.updates)).clamp(min=1 - self.decay)
        average, weights = self.pair
        if not share.is_cuda:
            torch._foreach_lerp_(average, weights, float(share))
            return
        change = torch._foreach_sub(weights, average)
        torch._foreach_mul_(change, share)
        torch._foreach_add_(average, change)

    def restart(self) -> None:
        """Begin again at the present weights."""
        self.network.load_state_dict(self.model.state_dict())
        self.updates.zero_()

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.network.state_dict() if self.decay else {}, "averaged": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.decay:
            self.network.load_state_dict(state["average"])
        self.updates.copy_(state["averaged"])


# Compiled and recorded


def records(trainer: "Trainer") -> bool:
    return trainer.device.type == "cuda" and trainer.settings.cuda_graph and trainer.processes.count == 1


def compiles(trainer: "Trainer", recorded: bool) -> bool:
    """By default only a recorded update is compiled: otherwise the host checks the guards of every block at each
    update, which takes longer than the compiled code saves (docs/performance.md)."""
    if trainer.settings.compile != "auto":
        return trainer.settings.compile == "on"
    return recorded and trainer.total_updates >= WORTH_COMPILING


def compile_update(trainer: "Trainer") -> None:
    """Compile the method and the encoders, if the settings say so or the run is long enough."""
    if not compiles(trainer, records(trainer)):
        return
    trainer.method = compile_method(trainer.method) if trainer.processes.count == 1 else trainer.method
    for network in {trainer.model, trainer.snapshot}:
        compile_encoder(backbone_of(network).encoder)


def record_update(trainer: "Trainer") -> Callable[[Tensor], None]:
    """The update as a CUDA graph, or unchanged if it cannot be recorded. Recording makes a few updates, which are
    undone in place."""
    if not records(trainer):
        return trainer._learn
    weights = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    rng, cuda_rng = torch.get_rng_state(), torch.cuda.get_rng_state(trainer.device)
    try:
        step: Callable[[Tensor], None] = GraphedStep(trainer._learn, trainer._next_rows())
    except RuntimeError as error:
        warnings.warn(f"this update cannot be recorded as a CUDA graph ({error}); training is slower.", stacklevel=2)
        step = trainer._learn
    trainer.model.load_state_dict(weights)
    trainer.averaging.restart()
    reset_optimizer(trainer.optimizer)
    trainer._clear_sums()
    torch.set_rng_state(rng)
    torch.cuda.set_rng_state(cuda_rng, trainer.device)
    return step


class GraphedStep:
    """Records `step(rows)` once and replays it on other rows; all other tensors it uses must stay in place."""

    def __init__(self, step: Callable[[Int64[Tensor, "batch"]], None], rows: Int64[Tensor, "batch"]) -> None:
        self.rows = rows.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                step(self.rows)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with capture(self.graph):
            step(self.rows)

    def __call__(self, rows: Int64[Tensor, "batch"]) -> None:
        self.rows.copy_(rows)
        self.graph.replay()


def compile_encoder(encoder: nn.Module) -> None:
    """Make `encoder` train with compiled code; evaluation, whose batches vary in size, is not compiled.

    A ResNet is compiled block by block: convolutions are library calls, across which nothing can be fused anyway, and
    blocks of the same shape share their code, so that compiling takes seconds instead of minutes.
    Call it after all copies of the network have been made: a copy would run the original's code.
    """
    parts = [encoder.stem, *encoder.blocks] if isinstance(encoder, ResNet) else [encoder]
    for part in parts:
        part.forward = _in_training(part, part.forward)


def compile_method(method: AnyMethod) -> AnyMethod:
    """The same method, for one size of batch, with the functions compiled that it names in `compiled`.

    The rest of a method are library calls and kernels that are fused already (see nets/refiner.py).
    """
    kind = type(method)
    return _with(method, {name: _compiled(getattr(kind, name)) for name in kind.compiled})


def measure_rarely(method: AnyMethod, stands_for: Callable[[], int]) -> AnyMethod:
    """The same method with its diagnostics, `metrics`, computed in some updates only. `stands_for()` is the number of
    updates that the present one represents: its metrics are multiplied by it, and not computed if it is 0. A method
    without `metrics` is returned unchanged."""
    plain: Callable[..., dict[str, Tensor]] | None = getattr(type(method), "metrics", None)
    if plain is None:
        return method

    def metrics(*inputs: Any) -> dict[str, Tensor]:
        count = stands_for()
        return {name: count * value for name, value in plain(*inputs).items()} if count else {}

    return _with(method, {"metrics": metrics})


def _with(method: AnyMethod, functions: dict[str, Callable[..., Any]]) -> AnyMethod:
    """The same method with other functions."""
    if not functions:
        return method
    kind = type(method)
    settings = {field.name: getattr(method, field.name) for field in fields(method)}
    return type(kind.__name__, (kind,), functions)(**settings)  # type: ignore[no-any-return]


def _in_training(module: nn.Module, plain: Callable[..., Any]) -> Callable[..., Any]:
    compiled = _compiled(plain)
    return lambda *inputs: (compiled if module.training else plain)(*inputs)


def _compiled(plain: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled, or unchanged if that fails (for example without a compiler); torch logs why."""
    compiled = torch.compile(plain, dynamic=False)

    def run(*inputs: Any, **options: Any) -> Any:
        with torch._dynamo.config.patch(recompile_limit=SPECIAL_CASES, suppress_errors=True):
            return compiled(*inputs, **options)

    return run
