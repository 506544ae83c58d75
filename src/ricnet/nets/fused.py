"""Inference of convolutional blocks by cuDNN's fused convolution, bias, sum and ReLU. On a GPU in half precision,
norms, sums and activations take longer than the convolutions (docs/performance.md)."""

from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor, nn


def fold(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Float[Tensor, "outputs inputs k k"], Float[Tensor, "outputs"]]:
    """Weight and bias of one convolution equal to convolution and norm in eval mode."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
    return conv.weight * scale.view(-1, 1, 1, 1), torch.addcmul(norm.bias, norm.running_mean, scale, value=-1)


def fused(
    x: Float[Tensor, "batch inputs h w"],
    conv: nn.Conv2d,
    norm: nn.BatchNorm2d,
    shortcut: tuple[Float[Tensor, "batch outputs h2 w2"], Float[Tensor, "outputs"] | float] | None = None,
) -> Float[Tensor, "batch outputs h2 w2"]:
    """relu(norm(conv(x)) + shortcut) of a 3×3 convolution; a shortcut is a tensor and the bias to add to it."""
    dtype, layout = torch.get_autocast_dtype("cuda"), torch.channels_last
    weight, bias = fold(conv, norm)
    x, weight = x.to(dtype, memory_format=layout), weight.to(dtype, memory_format=layout)
    stride, once = conv.stride, (1, 1)
    if shortcut is None:
        return torch.cudnn_convolution_relu(x, weight, bias.to(dtype), stride, once, once, 1)
    added, more = shortcut
    added = added.to(dtype, memory_format=layout)
    return torch.cudnn_convolution_add_relu(x, weight, added, 1.0, (bias + more).to(dtype), stride, once, once, 1)


@cache
def can_fuse(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether cuDNN has these convolutions for this GPU; tries one."""
    x = torch.zeros(1, 8, 4, 4, dtype=dtype, device=device).to(memory_format=torch.channels_last)
    once = (1, 1)
    try:
        torch.cudnn_convolution_add_relu(x, x.new_zeros(8, 8, 3, 3), x, 1.0, x.new_zeros(8), once, once, once, 1)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return False
    return True
