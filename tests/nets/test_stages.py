import torch

from ricnet.nets.encoders import EncoderOptions, build_encoder
from ricnet.nets.stages import divide, measure


def test_measuring_changes_neither_mode_nor_statistics() -> None:
    encoder = build_encoder(EncoderOptions("resnet10", width=0.125), (3, 16, 16))
    encoder.stem.eval()
    modes = [module.training for module in encoder.modules()]
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    measure(divide(encoder, "stage"), torch.ones(1, 3, 16, 16))
    assert [module.training for module in encoder.modules()] == modes
    assert all(torch.equal(before[name], tensor) for name, tensor in encoder.state_dict().items())
