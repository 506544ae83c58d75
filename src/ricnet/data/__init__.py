"""Data: names, folders, arrays and tables in, tensors out."""

from ricnet.data.arrays import read_npz_inputs
from ricnet.data.batches import augment, epoch_order
from ricnet.data.columns import Columns, columns_from_json
from ricnet.data.dataset import Augmentation, Dataset, Split
from ricnet.data.delimited import Table, parse_table
from ricnet.data.images import decode_image, find_images, read_image, read_images
from ricnet.data.inventory import check_dataset, get_dataset, list_datasets
from ricnet.data.sources import load, whole_path
from ricnet.data.splits import split_off
from ricnet.data.table_files import read_table

__all__ = [
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
    "parse_table",
    "read_image",
    "read_images",
    "read_npz_inputs",
    "read_table",
    "split_off",
    "whole_path",
]
