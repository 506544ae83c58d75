"""The contract of an encoder: any module from a batch of inputs to one vector per input, in a tensor or in an output
in which `as_embedding` finds it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Num
from torch import Tensor, nn

from ricnet.errors import RicnetError

CPU_BATCH = 64
"""A narrow ResNet-18 took 1.3 to 2 times as long per image in batches of 512."""
GPU_BATCH = 512
POOLED, TOKENS = "pooler_output", "last_hidden_state"
"""Names in the outputs of transformers: the vector of an input, and those of its tokens or places."""


def encode(
    network: Callable[[Num[Tensor, "batch ..."]], Float[Tensor, "batch size"]], inputs: Num[Tensor, "n ..."]
) -> Float[Tensor, "n size"]:
    """`network(inputs)` in batches, for a network in eval mode."""
    rows = CPU_BATCH if inputs.device.type == "cpu" else GPU_BATCH
    return torch.cat([network(batch) for batch in inputs.split(rows)])


@contextmanager
def in_eval_mode(*networks: nn.Module) -> Iterator[None]:
    """Eval mode, in which batch norm does not update its statistics. Afterwards the mode of every module is restored:
    parts of a network may differ."""
    modes = {module: module.training for network in networks for module in network.modules()}
    for network in networks:
        network.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def reads_tokens(encoder: nn.Module) -> bool:
    return hasattr(encoder, "vocabulary")


def example_input(encoder: nn.Module, input_shape: tuple[int, ...]) -> Num[Tensor, "1 ..."]:
    """An input on the device of the encoder: zeros, or for texts its id `word` at every position."""
    device = next((parameter.device for parameter in encoder.parameters()), None)
    if reads_tokens(encoder):
        return torch.full((1, *input_shape), getattr(encoder, "word", 0), device=device, dtype=torch.int32)
    return torch.zeros(1, *input_shape, device=device)


def embedding_size(encoder: nn.Module, input_shape: tuple[int, ...]) -> int:
    """Length of the vector of one input, measured on an example."""
    with in_eval_mode(encoder), torch.no_grad():
        return int(as_embedding(encoder(example_input(encoder, input_shape))).shape[1])


def as_embedding(output: Any) -> Float[Tensor, "batch embedding"]:
    """The output if it is a tensor; else its pooled vector, else its only matrix, else the mean over tokens."""
    embedding = output if isinstance(output, Tensor) else _pick(_tensors(output))
    if embedding is None or embedding.ndim != 2:
        raise RicnetError(
            f"the encoder must return one vector an input, shape (batch, size); it returned {_describe(output)}; "
            "wrap it in a module that returns such a tensor."
        )
    return embedding


def _tensors(output: Any) -> dict[str, Tensor]:
    """Floating-point tensors of an output by name; masks and indices are left out."""
    if isinstance(output, Mapping):
        found = {str(name): part for name, part in output.items()}
    elif hasattr(output, "_asdict"):
        found = output._asdict()
    elif isinstance(output, tuple | list):
        found = {str(place): part for place, part in enumerate(output)}
    else:
        found = getattr(output, "__dict__", {})
    return {name: part for name, part in found.items() if isinstance(part, Tensor) and part.dtype.is_floating_point}


def _pick(parts: Mapping[str, Tensor]) -> Tensor | None:
    """The embedding among the tensors of an output; None if it is ambiguous."""
    if POOLED in parts:
        return parts[POOLED].flatten(1)  # convolutional networks return (batch, size, 1, 1)
    matrices = [part for part in parts.values() if part.ndim == 2]
    if matrices:
        return matrices[0] if len(matrices) == 1 else None
    tokens = parts.get(TOKENS)
    if tokens is None or tokens.ndim not in (3, 4):
        return None
    return tokens.mean(1) if tokens.ndim == 3 else tokens.mean((2, 3))  # (batch, tokens, size) or (batch, size, h, w)


def _describe(output: Any) -> str:
    if isinstance(output, Tensor):
        return str(tuple(output.shape))
    parts = ", ".join(f"{name} {tuple(part.shape)}" for name, part in _tensors(output).items())
    return f"something of type {type(output).__name__} with {parts or 'no tensor of numbers'}"
