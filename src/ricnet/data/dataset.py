"""The one form every source of data takes: three splits of tensors, the names of the classes, how to augment."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxtyping import Float, Int64, Num
from torch import Tensor

from ricnet.data.columns import Columns
from ricnet.errors import RicnetError


@dataclass(frozen=True)
class Split:
    """Labelled examples: uint8 images (n, channels, height, width) or float32 features (n, columns)."""

    inputs: Num[Tensor, "n ..."]
    labels: Int64[Tensor, "n"]
    weights: Float[Tensor, "n"] | None = None
    """How much each example counts in training and in choosing the epoch, against the others; None for all alike."""

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Int64[Tensor, "m"]) -> "Split":
        weights = None if self.weights is None else self.weights[rows]
        return Split(self.inputs[rows], self.labels[rows], weights)


def balanced(split: Split) -> Split:
    """Weighed so that all classes that it has count the same; each row counts 1 on average."""
    classes, place, counts = split.labels.unique(return_inverse=True, return_counts=True)
    weights = len(split) / (len(classes) * counts[place]).float()
    return replace(split, weights=weights if split.weights is None else weights * split.weights)


@dataclass(frozen=True)
class Augmentation:
    """What may be done to a training image without changing its class."""

    crop_padding: int = 0
    """Pad by this many black pixels, then crop back at a random place; 0 leaves images where they are."""
    flip: bool = False
    """Mirror half of the images left to right. Not for digits or letters."""
    cutout: int = 0
    """Grey out a square of this many pixels at a random place, partly outside perhaps (DeVries and Taylor 2017)."""
    crop_area: float = 1.0
    """Crop this share of the area or more, its sides in a ratio from 3/4 to 4/3, and resize it to the whole (Szegedy et
    al. 2015), in place of padded crops; 1 leaves images whole."""
    colour: float = 0.0
    """Multiply brightness, contrast and saturation by up to so much above or below 1 each; 0 leaves colours alone."""


PHOTOGRAPHS = Augmentation(flip=True, crop_area=0.35, colour=0.4)
PHOTOGRAPH_SIDE = 48
"""Images in colour of more pixels a side are taken for photographs."""


def small_crops(shape: Sequence[int]) -> Augmentation:
    """For arrays of this shape, of which nothing else is known: as is usual for CIFAR-10, less for smaller images."""
    return Augmentation(crop_padding=min(4, min(shape[2:]) // 8) if len(shape) == 4 else 0)


def _refuse_unwritable(class_names: tuple[str, ...], where: str) -> None:
    """The bytes of a folder's name need not be text, but a run has to write it down."""
    for name in class_names:
        try:
            name.encode("utf-8")
        except UnicodeEncodeError:
            raise RicnetError(f"{where}: the class {name!r} is no text in UTF-8; rename it.") from None


@dataclass(frozen=True)
class Dataset:
    """Data that is only to be measured may lack training rows, validation rows or both."""

    name: str
    train: Split
    val: Split
    test: Split
    class_names: tuple[str, ...]
    augmentation: Augmentation = Augmentation()
    notes: tuple[str, ...] = ()
    """What the user should know: files that were skipped, how the splits were made."""
    columns: Columns | None = None
    """How the columns of a table became these numbers; None for other data."""

    def __post_init__(self) -> None:
        _refuse_unwritable(self.class_names, self.name)
        for name, split in (("train", self.train), ("val", self.val), ("test", self.test)):
            if len(split) != len(split.inputs) or (name == "test" and not len(split)):
                raise RicnetError(
                    f"{self.name}: its {name} split has {len(split.inputs)} inputs and {len(split)} labels."
                )
            if len(split) and (split.labels.min() < 0 or split.labels.max() >= len(self.class_names)):
                raise RicnetError(
                    f"{self.name}: a label of its {name} split is not in 0 … {len(self.class_names) - 1}."
                )

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.train.inputs.shape[1:])

    @property
    def is_image(self) -> bool:
        return len(self.input_shape) == 3

    @property
    def unit(self) -> str:
        """What its examples are called."""
        return "images" if self.is_image else "rows"
