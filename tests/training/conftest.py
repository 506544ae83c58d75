"""A tiny problem that trains in a second, shared by the tests of training and of the command line."""

import pytest
import torch

from ricnet.data import Dataset, Split


def blobs(rows: int, seed: int) -> Split:
    """Three overlapping clouds in four dimensions."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % 3
    centres = 2 * torch.eye(4)[:3]
    return Split(centres[labels] + torch.randn(rows, 4, generator=generator), labels)


@pytest.fixture(scope="session")
def dataset() -> Dataset:
    return Dataset("blobs", blobs(96, 0), blobs(30, 1), blobs(60, 2), ("a", "b", "c"))
