"""Your own images: a folder with one subfolder per class, of any size and mode. The same from the shell:

    ric train photos/ --out runs/photos
    ric predict runs/photos new.jpg

Without --folder, it writes some of scikit-learn's digits as image files and uses those.
"""

import argparse
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits

import ricnet
from ricnet.data import find_images, read_images


def write_digits(folder: Path) -> Path:
    digits = load_digits()
    for i, (pixels, label) in enumerate(zip(digits.images[:300], digits.target[:300], strict=True)):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15.9).astype("uint8")).save(folder / str(label) / f"{i}.png")
    return folder


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--folder", type=Path, help="your images")
parser.add_argument("--epochs", type=int, default=60)
parser.add_argument("--out", type=Path, default=Path("runs/own-images"))
args = parser.parse_args()

folder = args.folder or write_digits(args.out.parent / "images")
model = ricnet.train(folder, epochs=args.epochs, out=args.out, overwrite=True)

files = find_images(folder)[::50]
images, broken = read_images(files, model.input_shape)  # resized and rotated as in training
path = model.refine(images)
for file, belief, steps in zip([f for f in files if f not in broken], path.final.exp(), path.halt_step, strict=True):
    print(f"{file.relative_to(folder)}: {model.class_names[belief.argmax()]} ({belief.max():.0%}) after {steps} steps")
