"""The state of a run, as in state.pt: all that determines its next update."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ricnet.errors import RicnetError
from ricnet.io import is_number
from ricnet.training.callbacks import Callback, State
from ricnet.training.optimization import restore_optimizer

if TYPE_CHECKING:
    from ricnet.training.trainer import Trainer


def state_of(trainer: "Trainer") -> State:
    return {
        "update": trainer.update,
        "seconds": trainer.seconds,
        "epoch_seconds": trainer.epoch_seconds,
        "model": trainer.model.state_dict(),
        "snapshot": trainer.snapshot.state_dict() if trainer.period else {},
        "optimizer": trainer.optimizer.state_dict(),
        "sums": trainer.sums,
        **{name: value for callback in trainer.built_in for name, value in callback.state_dict().items()},
        **_own_states(trainer.own_callbacks),
        "rng": (trainer.generator or torch.default_generator).get_state(),
        "cuda_rng": torch.cuda.get_rng_state(trainer.device) if trainer.device.type == "cuda" else None,
    }


def restore(trainer: "Trainer", state: State) -> None:
    """Go back to a saved state; `restore_own` does so for the user's callbacks."""
    trainer.update, trainer.seconds, trainer.epoch_seconds = state["update"], state["seconds"], state["epoch_seconds"]
    trainer.model.load_state_dict(state["model"])
    if trainer.period:
        trainer.snapshot.load_state_dict(state["snapshot"])
    restore_optimizer(trainer.optimizer, state["optimizer"])
    for name, total in state["sums"].items():
        trainer.sums.setdefault(name, torch.zeros((), device=trainer.device)).copy_(total)
    for callback in trainer.built_in:
        callback.load_state_dict(state)
    (trainer.generator or torch.default_generator).set_state(state["rng"])
    if trainer.device.type == "cuda" and state["cuda_rng"] is not None:
        torch.cuda.set_rng_state(state["cuda_rng"], trainer.device)
    if trainer.folder is not None:
        trainer.folder.keep_metrics_until(trainer.epoch)


def restore_own(trainer: "Trainer", state: State) -> None:
    """Give the user's callbacks their states back; one that is new to the run gets none."""
    states = state.get("callbacks", {})
    for name, callback in _named(trainer.own_callbacks):
        if name in states:
            callback.load_state_dict(states[name])


def impossible(trainer: "Trainer", state: State) -> str | None:
    """Why this run cannot have reached a stored state; None if it can."""
    update = state["update"]
    if type(update) is not int or not 0 <= update <= trainer.total_updates:
        return f"update {str(update)[:20]} of {trainer.total_updates}"
    sizes = [parameter.shape for group in trainer.optimizer.param_groups for parameter in group["params"]]
    moments = [(sizes[i], m) for i, entries in state["optimizer"]["state"].items() for m in entries.values()]
    if any(moment.numel() > 1 and moment.shape != size for size, moment in moments):
        return "an optimizer of another network"
    times = state["seconds"], state["epoch_seconds"], state["collapsed"]
    if not all(is_number(time) and time >= 0 for time in times):
        return f"times or counts {str(times)[:60]}"
    return _impossible_best(trainer, state["best"], update // trainer.updates_per_epoch)


def _impossible_best(trainer: "Trainer", best: State, epochs: int) -> str | None:
    if not best:
        return "no best epoch" if epochs else None
    for epoch in (best["epoch"], best["best_epoch"]):
        if type(epoch) is not int or not 1 <= epoch <= epochs:
            return f"best epoch {str(epoch)[:20]} after {epochs} epochs"
    own = {name: tensor.shape for name, tensor in trainer.model.state_dict().items()}
    if {name: tensor.shape for name, tensor in best["weights"].items()} != own:
        return "best weights of another network"
    return None


def _own_states(callbacks: Sequence[Callback]) -> State:
    """The states of a user's callbacks, by their names; no entry if none has a state."""
    states = {name: state for name, callback in _named(callbacks) if (state := callback.state_dict())}
    for name, state in states.items():
        if (kind := _unstorable(state)) is not None:
            raise RicnetError(
                f"state_dict() of the callback {name} holds a {kind.__name__}, which state.pt cannot; "
                "return numbers, strings, tensors, lists, tuples and dicts only."
            )
    return {"callbacks": states} if states else {}


def _named(callbacks: Sequence[Callback]) -> Iterator[tuple[str, Callback]]:
    """By class; the second of a class is called `Name 2`."""
    seen: Counter[str] = Counter()
    for callback in callbacks:
        name = type(callback).__name__
        seen[name] += 1
        yield (name if seen[name] == 1 else f"{name} {seen[name]}"), callback


def _unstorable(value: Any) -> type | None:
    """The type of the first part that `torch.load(weights_only=True)` would refuse."""
    if type(value) in (dict, list, tuple):
        parts = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value
        return next((kind for part in parts if (kind := _unstorable(part)) is not None), None)
    plain = value is None or type(value) in (bool, int, float, str) or type(value) is Tensor
    return None if plain else type(value)
