"""A hundred classes of real images: two scanned digits side by side, labelled 0 to 99.

    python scripts/make_digit_pairs.py pairs.npz

12,000 images to train on and 4,000 to test, each of 8 × 16 pixels; no digit of one part is in the other.
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

SIZES = {"train": 12_000, "test": 4_000}
TRAIN_SHARE = 0.75


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the .npz file to write")
    np.savez(parser.parse_args().out, **pairs(np.random.default_rng(0)))


def pairs(random: np.random.Generator) -> dict[str, np.ndarray]:
    digits = load_digits()
    pixels = (digits.images * 255 / 16).astype(np.uint8)
    order = random.permutation(len(pixels))
    cut = int(TRAIN_SHARE * len(order))
    arrays = {}
    for part, pool in (("train", order[:cut]), ("test", order[cut:])):
        left, right = (random.choice(pool, SIZES[part]) for _ in range(2))
        arrays[f"x_{part}"] = np.concatenate([pixels[left], pixels[right]], axis=2)[:, None]
        arrays[f"y_{part}"] = 10 * digits.target[left] + digits.target[right]
    return arrays


if __name__ == "__main__":
    main()
