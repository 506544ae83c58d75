"""Your own table: columns of numbers and texts, with gaps, and a column with the classes. The same from the shell:

    ric train wines.csv --target grower --out runs/wines
    ric predict runs/wines new.csv --abstain-below 0.9

The encoding of the columns is stored in the run's config.json, so that new rows are encoded as the training rows were.
"""

import argparse
import csv
from pathlib import Path

from sklearn.datasets import load_wine

import ricnet
from ricnet.data import read_table


def write_wines(path: Path) -> Path:
    """scikit-learn's wines, with the hue as a text and a tenth of the alcohol missing."""
    wine = load_wine()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["alcohol", "magnesium", "proline", "hue", "grower"])
        for i, (row, label) in enumerate(zip(wine.data, wine.target, strict=True)):
            hue = "pale" if row[10] < 0.8 else "middling" if row[10] < 1.1 else "deep"
            writer.writerow(["" if i % 10 == 0 else row[0], row[4], row[12], hue, "ABC"[label]])
    return path


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=300)
parser.add_argument("--out", type=Path, default=Path("runs/own-table"))
args = parser.parse_args()

table = write_wines(args.out.parent / "wines.csv")
model = ricnet.train(f"{table}#grower", epochs=args.epochs, out=args.out, overwrite=True)

new = read_table(table).take(range(0, 178, 30))
path = model.refine(model.columns.encode(new))
for line, belief in zip(new.lines, path.final.exp(), strict=True):
    print(f"line {line}: grower {model.class_names[belief.argmax()]} ({belief.max():.0%})")
