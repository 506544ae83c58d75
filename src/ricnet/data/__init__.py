"""Data sets: read by name or from folders, arrays and tables into tensors."""

import ricnet.data.formats  # noqa: F401 — registers the data sets known by name
from ricnet.data.arrays import read_npz_inputs
from ricnet.data.batches import augment, epoch_order
from ricnet.data.columns import Columns, columns_from_json
from ricnet.data.dataset import Augmentation, Dataset, Split
from ricnet.data.images import decode_image, find_images, read_image, read_images
from ricnet.data.registry import (
    DATASETS,
    check_dataset,
    get_dataset,
    list_datasets,
    load,
    register_dataset,
    whole_path,
)
from ricnet.data.tables import Table, read_table

__all__ = [
    "DATASETS",
    "Augmentation",
    "Columns",
    "Dataset",
    "Split",
    "Table",
    "augment",
    "check_dataset",
    "columns_from_json",
    "decode_image",
    "epoch_order",
    "find_images",
    "get_dataset",
    "list_datasets",
    "load",
    "read_image",
    "read_images",
    "read_npz_inputs",
    "read_table",
    "register_dataset",
    "whole_path",
]
