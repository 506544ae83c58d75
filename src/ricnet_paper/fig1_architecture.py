"""Figure 1: the actor-critic architecture, with the sizes of the paper's network (ResNet-34 on CIFAR-10).

The drawing is `fig1/fig1.svg`, committed with its exports as PDF and PNG; `fig1/fig1.csv` lists the numbers in it.
"""

from pathlib import Path

import pandas as pd

from ricnet.studies.experiments import Runs
from ricnet_paper.kit import Item, read_csv
from ricnet_paper.scales import Scale

FOLDER = Path(__file__).parent / "fig1"


def table(scale: Scale, runs: Runs) -> pd.DataFrame:
    """Output shape and parameters of each part, then the settings; the same at every scale."""
    return read_csv(FOLDER / "fig1.csv")


def write(table: pd.DataFrame) -> dict[str, bytes]:
    return {ending: (FOLDER / f"fig1.{ending}").read_bytes() for ending in ("pdf", "png", "svg")}


ITEM = Item("fig1", "Actor-critic architecture of RIC", lambda scale: [], table, write=write)
