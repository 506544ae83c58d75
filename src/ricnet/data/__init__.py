"""Data: names, folders and arrays in, tensors out."""

from ricnet.data.arrays import read_npz_inputs
from ricnet.data.batches import augment, epoch_order
from ricnet.data.dataset import Augmentation, Dataset, Split
from ricnet.data.images import find_images, read_image
from ricnet.data.inventory import check_dataset, get_dataset, list_datasets
from ricnet.data.sources import load, whole_path
from ricnet.data.splits import split_off

__all__ = [
    "Augmentation",
    "Dataset",
    "Split",
    "augment",
    "check_dataset",
    "epoch_order",
    "find_images",
    "get_dataset",
    "list_datasets",
    "load",
    "read_image",
    "read_npz_inputs",
    "split_off",
    "whole_path",
]
