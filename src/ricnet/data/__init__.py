"""Data sets: read by name or from folders, arrays and tables into tensors."""

import ricnet.data.formats  # noqa: F401 — registers the data sets known by name
from ricnet.data.arrays import read_npz_inputs as read_npz_inputs
from ricnet.data.batches import augment as augment
from ricnet.data.batches import epoch_order as epoch_order
from ricnet.data.columns import Columns as Columns
from ricnet.data.columns import columns_from_json as columns_from_json
from ricnet.data.dataset import Augmentation as Augmentation
from ricnet.data.dataset import Dataset as Dataset
from ricnet.data.dataset import Split as Split
from ricnet.data.images import find_images as find_images
from ricnet.data.images import read_image as read_image
from ricnet.data.images import read_images as read_images
from ricnet.data.registry import DATASETS as DATASETS
from ricnet.data.registry import check_dataset as check_dataset
from ricnet.data.registry import get_dataset as get_dataset
from ricnet.data.registry import list_datasets as list_datasets
from ricnet.data.registry import load as load
from ricnet.data.registry import register_dataset as register_dataset
from ricnet.data.registry import whole_path as whole_path
from ricnet.data.tables import Table as Table
from ricnet.data.tables import read_table as read_table
