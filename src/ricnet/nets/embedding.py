"""One vector an input, of whatever an encoder returns: a tensor, or the dict, tuple or object that others' do."""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Float
from torch import Tensor

from ricnet.errors import RicnetError

POOLED, TOKENS = "pooler_output", "last_hidden_state"
"""What the transformers library calls the vector of an input, and those of its tokens or places."""


def as_embedding(output: Any) -> Float[Tensor, "batch embedding"]:
    """The output if it is a tensor; else what it has pooled, else its only matrix, else the mean over tokens."""
    embedding = output if isinstance(output, Tensor) else _chosen(_named(output))
    if embedding is None or embedding.ndim != 2:
        raise RicnetError(
            f"the encoder must return one vector an input, shape (batch, size); it returned {_described(output)}; "
            "wrap it in a module that returns such a tensor."
        )
    return embedding


def _named(output: Any) -> dict[str, Tensor]:
    """The numbers in it by name; masks and the like are none of them."""
    if isinstance(output, Mapping):
        found = {str(name): part for name, part in output.items()}
    elif hasattr(output, "_asdict"):
        found = output._asdict()
    elif isinstance(output, tuple | list):
        found = {str(place): part for place, part in enumerate(output)}
    else:
        found = getattr(output, "__dict__", {})
    return {name: part for name, part in found.items() if isinstance(part, Tensor) and part.dtype.is_floating_point}


def _chosen(parts: Mapping[str, Tensor]) -> Tensor | None:
    """None where it would be a guess."""
    if POOLED in parts:
        return parts[POOLED].flatten(1)  # convolutional ones leave it (batch, size, 1, 1)
    matrices = [part for part in parts.values() if part.ndim == 2]
    if matrices:
        return matrices[0] if len(matrices) == 1 else None
    tokens = parts.get(TOKENS)
    if tokens is None or tokens.ndim not in (3, 4):
        return None
    return tokens.mean(1) if tokens.ndim == 3 else tokens.mean((2, 3))  # (batch, tokens, size) or (batch, size, h, w)


def _described(output: Any) -> str:
    if isinstance(output, Tensor):
        return str(tuple(output.shape))
    parts = ", ".join(f"{name} {tuple(part.shape)}" for name, part in _named(output).items())
    return f"something of type {type(output).__name__} with {parts or 'no tensor of numbers'}"
