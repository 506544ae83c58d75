"""From raw input to embedding: normalise, then encode, in the precision the trainer asks for."""

import torch
from jaxtyping import Float, Num
from torch import Tensor, nn

from ricnet.nets.embedding import as_embedding
from ricnet.nets.encoders import embedding_size


class Backbone(nn.Module):
    """Takes inputs as the data set holds them (uint8 images, float features), so a saved model needs nothing else."""

    mean: Tensor
    std: Tensor

    def __init__(self, encoder: nn.Module, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.encoder = encoder
        self.input_shape = input_shape
        self.embedding_size = embedding_size(encoder, input_shape)
        self.register_buffer("mean", torch.zeros(input_shape[0]))
        self.register_buffer("std", torch.ones(input_shape[0]))
        self.autocast: torch.dtype | None = None
        """Lower precision for the encoder alone; what follows it stays in float32."""

    def fit_normalization(self, inputs: Num[Tensor, "n ..."]) -> None:
        """Take mean and deviation of each channel (or column) from training inputs; a constant one is left unscaled."""
        others = [dim for dim in range(inputs.ndim) if dim != 1]
        parts = [part.double() for part in inputs[:: max(1, len(inputs) // 10_000)].split(500)]  # never all at once
        mean = torch.stack([len(part) * part.mean(others) for part in parts]).sum(0) / sum(map(len, parts))
        shape = (1, -1) + (1,) * (inputs.ndim - 2)
        squares = [len(part) * (part - mean.view(shape)).square().mean(others) for part in parts]
        std = (torch.stack(squares).sum(0) / sum(map(len, parts))).sqrt()
        self.mean.copy_(mean)
        self.std.copy_(torch.where(std > 1e-9 * mean.abs(), std, torch.ones_like(std)))

    def forward(self, inputs: Num[Tensor, "batch ..."]) -> Float[Tensor, "batch embedding"]:
        shape = (1, -1) + (1,) * (inputs.ndim - 2)
        normal = (inputs.to(self.mean.dtype) - self.mean.view(shape)) / self.std.view(shape)
        with torch.autocast(inputs.device.type, dtype=self.autocast, enabled=self.autocast is not None):
            embedding = as_embedding(self.encoder(normal))
        return embedding.to(self.mean.dtype)
