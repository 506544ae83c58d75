"""ImageWoof: ten breeds of dogs, as folders of photographs named by WordNet ids."""

from collections.abc import Sequence
from pathlib import Path

from ricnet.data.archives import unpack
from ricnet.data.dataset import Split
from ricnet.data.folders import class_folders, read_split
from ricnet.errors import RicnetError

BREEDS = {
    "n02086240": "Shih-Tzu",
    "n02087394": "Rhodesian ridgeback",
    "n02088364": "Beagle",
    "n02089973": "English foxhound",
    "n02093754": "Border terrier",
    "n02096294": "Australian terrier",
    "n02099601": "Golden retriever",
    "n02105641": "Old English sheepdog",
    "n02111889": "Samoyed",
    "n02115641": "Dingo",
}
RESOLUTION = 128


def read_imagewoof(paths: Sequence[Path], resolution: int | None) -> tuple[Split, Split]:
    """The official val/ is the test set."""
    folder = paths[0] if paths[0].is_dir() else unpack(paths[0], paths[0].stem)
    side = resolution or RESOLUTION
    return _read_half(folder / "train", side), _read_half(folder / "val", side)


def _read_half(folder: Path, side: int) -> Split:
    classes = class_folders(folder) if folder.is_dir() else {}
    missing = [wnid for wnid in BREEDS if not classes.get(wnid)]
    if missing:
        raise RicnetError(f"{folder / missing[0]} holds no images; unpack imagewoof2-160.tgz again.")
    broken: dict[Path, str] = {}
    wanted = {wnid: classes[wnid] for wnid in BREEDS}
    split = read_split(wanted, list(BREEDS), (3, side, side), broken)
    if broken:  # a published set is whole or it is not that set
        raise RicnetError(f"{min(broken)} cannot be read; unpack imagewoof2-160.tgz again.")
    return split
