"""Your own data set under a name: points on three spirals. This script is the command line that knows it:

    python examples/own_dataset.py train spirals --epochs 40 --out runs/spirals
    python examples/own_dataset.py compare spirals --methods supervised ric
    python examples/own_dataset.py data

The function returns training and test rows; validation rows are taken from the training rows. Images are uint8 tensors
(n, channels, height, width), rows of numbers float32 (n, columns). For data to download, `register_dataset` takes
`files`, which `ric data get` fetches.
"""

import torch

from ricnet.apps.cli import main
from ricnet.data import Split, register_dataset


@register_dataset("spirals", title="Three spirals", class_names=("red", "green", "blue"))
def read_spirals() -> tuple[Split, Split]:
    return spirals(600, seed=0), spirals(300, seed=1)


def spirals(rows: int, seed: int) -> Split:
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % 3
    radius = torch.rand(rows, generator=random)
    angle = 4 * radius + 2 * torch.pi / 3 * labels + 0.2 * torch.randn(rows, generator=random)
    return Split(torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), labels)


if __name__ == "__main__":
    main()
