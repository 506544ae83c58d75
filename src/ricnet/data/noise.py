"""Wrong labels on purpose: how a method bears them when nobody has made a noisy version of the data."""

from dataclasses import replace

import numpy as np
import torch

from ricnet.data.dataset import Dataset, Split
from ricnet.data.splits import SEED
from ricnet.errors import require


def flip_labels(dataset: Dataset, share: float) -> Dataset:
    """Give this share of the training and of the validation rows another class, each other class alike often.

    The same rows are flipped in every run, and the test labels stay clean, as in CIFAR-10N.
    """
    require(0 <= share < 1, "label_noise", share, "from 0 to below 1")
    if share == 0:
        return dataset
    rng = np.random.RandomState(SEED)  # the one stream numpy promises never to change
    classes = len(dataset.class_names)
    train, val = (_flip(split, share, classes, rng) for split in (dataset.train, dataset.val))
    return replace(dataset, train=train, val=val)


def _flip(split: Split, share: float, classes: int, rng: np.random.RandomState) -> Split:
    count = round(share * len(split))
    rows = torch.from_numpy(rng.permutation(len(split))[:count])
    shift = torch.from_numpy(rng.randint(1, classes, size=count))
    labels = split.labels.clone()
    labels[rows] = (labels[rows] + shift) % classes
    return Split(split.inputs, labels, split.weights)
