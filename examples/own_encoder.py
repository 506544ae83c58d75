"""Your own network as the encoder: a module that maps a batch of inputs to a batch of vectors.

    python examples/own_encoder.py --epochs 30

Registered under a name, it can be used from the command line, which is then this script:

    python examples/own_encoder.py train digits --encoder patches --out runs/patches
    python examples/own_encoder.py predict runs/patches

`stages` defines the early exits, for --exits stage.
"""

import argparse
import sys
from pathlib import Path

from torch import Tensor, nn

import ricnet
from ricnet.apps.cli import main
from ricnet.nets.encoders import EncoderOptions


class Patches(nn.Module):
    """A convolution on patches of 2 × 2 pixels, then a layer that reads all of them."""

    def __init__(self, channels: int, height: int, width: int, size: int) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Conv2d(channels, size, 2, stride=2), nn.ReLU())
        places = (height // 2) * (width // 2)
        self.together = nn.Sequential(nn.Flatten(), nn.Linear(size * places, 2 * size), nn.ReLU())

    def forward(self, images: Tensor) -> Tensor:
        vectors: Tensor = self.together(self.each(images))
        return vectors

    def stages(self, exits: str) -> list[nn.Module]:
        """Modules that, applied in sequence, compute `forward`; there is an exit after each."""
        return [self.each, self.together]


@ricnet.register_encoder("patches")
def patches(options: EncoderOptions, input_shape: tuple[int, ...]) -> nn.Module:
    channels, height, width = input_shape
    return Patches(channels, height, width, round(64 * options.width))


if __name__ == "__main__":
    if sys.argv[1:] and not sys.argv[1].startswith("-"):
        main()
        sys.exit()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("runs/own-encoder"))
    args = parser.parse_args()

    mine = patches(EncoderOptions(), (1, 8, 8))
    model = ricnet.train("digits", encoder=mine, epochs=args.epochs, out=args.out, overwrite=True)
    again = ricnet.load(args.out, encoder=mine)  # a module without a name has to be passed again
    print(f"{sum(p.numel() for p in again.model.parameters()):,} weights, of which the encoder has", end=" ")
    print(f"{sum(p.numel() for p in mine.parameters()):,}")
