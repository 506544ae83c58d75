"""Answers of a ResNet's block by cuDNN's fused convolutions."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ricnet.nets.backbone import pool_features
from ricnet.nets.encoders import BasicBlock
from ricnet.nets.fused import can_fuse, fold


def lived_in(module: nn.Module) -> nn.Module:
    """As if it had been trained: no norm leaves anything as it is."""
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            assert norm.running_mean is not None
            assert norm.running_var is not None
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
            norm.weight.data.uniform_(0.5, 1.5)
            norm.bias.data.normal_()
    return module.eval()


def test_a_convolution_takes_its_norm_in() -> None:
    conv, norm = nn.Conv2d(3, 5, 3, bias=False).double(), nn.BatchNorm2d(5).double()
    x = torch.randn(2, 3, 6, 6).double()
    lived_in(norm)
    weight, bias = fold(conv, norm)
    torch.testing.assert_close(torch.conv2d(x, weight, bias), norm(conv(x)))


def test_where_there_is_no_such_convolution_nothing_is_fused() -> None:
    assert not can_fuse(torch.float32, torch.device("cpu"))


SHAPES = pytest.mark.parametrize(("outputs", "stride"), [(16, 1), (32, 1), (32, 2)])


@torch.no_grad()
@SHAPES
def test_fused_convolutions_compute_a_block(outputs: int, stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a cuDNN that computes in float64, on any machine."""

    def add_relu(x: Tensor, weight: Tensor, added: Tensor, alpha: float, *rest: Any) -> Tensor:
        return torch.relu(torch.conv2d(x, weight, *rest) + alpha * added)

    monkeypatch.setattr(torch, "cudnn_convolution_relu", lambda *given: torch.relu(torch.conv2d(*given)))
    monkeypatch.setattr(torch, "cudnn_convolution_add_relu", add_relu)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda _: torch.float64)
    block, x = lived_in(BasicBlock(16, outputs, stride, nn.ReLU)).double(), torch.randn(5, 16, 8, 8).double()
    torch.testing.assert_close(block._fused(x), block(x))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("channels_last", [False, True])
@SHAPES
def test_a_fused_block_equals_its_parts(outputs: int, stride: int, channels_last: bool) -> None:
    block = lived_in(BasicBlock(16, outputs, stride, nn.ReLU)).cuda()
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x = torch.randn(5, 16, 8, 8, device="cuda").to(memory_format=layout)
    block.to(memory_format=layout)  # type: ignore[call-overload]
    with torch.no_grad():
        expected = block(x)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert block.fuses(x)
            answer = block(x)
    assert answer.dtype == torch.bfloat16
    torch.testing.assert_close(answer.float(), expected, atol=0.05, rtol=0.02)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_it_is_fused_only_where_it_may_be() -> None:
    x = torch.randn(2, 12, 8, 8, device="cuda")
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        assert not BasicBlock(12, 16, 1, nn.ReLU).cuda().eval().fuses(x)
        assert not BasicBlock(16, 16, 1, nn.SiLU).cuda().eval().fuses(x)
        assert not BasicBlock(16, 16, 1, nn.ReLU).cuda().train().fuses(x)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert not BasicBlock(16, 16, 1, nn.ReLU).cuda().eval().fuses(x)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("side", [32, 7, 1])
def test_features_on_a_gpu_are_those_of_a_cpu(side: int) -> None:
    seen = torch.randn(3, 4, side, side)
    torch.testing.assert_close(pool_features(seen.cuda()).cpu(), pool_features(seen))
