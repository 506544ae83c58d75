"""Two further tables: RIC beside other calibration methods, and ablations and controls of RIC."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pandas as pd

from ricnet.methods import RIC
from ricnet.report.runs import RunRecord
from ricnet.report.tables import Cell, Grid
from ricnet.studies.experiments import Experiment, find_system
from ricnet_paper import kit
from ricnet_paper.scales import Scale

PEERS = (
    *("supervised", "supervised-temperature", "label-smoothing", "logitnorm", "evidential", "confidence-cap"),
    *("ric", "ric-temperature"),
)
ABLATIONS = (
    *("ric", "ric-snapshots", "ric-closed-form", "ric-expected", "anytime"),
    *("ric-ppo", "ric-logistic-normal", "ric-mu", "ric-implied"),
)
ALONE = "ric:rollouts=1"
SETTINGS = (
    "ric-snapshots:updates_per_snapshot=none",  # the paper's five passes
    *(ALONE, "ric:horizon=5", "ric:gae_lambda=0", "ric:gae_lambda=0.95"),
    *("ric:gamma=0.5", "ric:gamma=0.95"),
    *("ric:c_max=3", "ric:c_max=30", "ric:credit=joint"),
)
"""Settings of RIC changed one at a time; below scale `paper` with one seed, which shows a direction, not a size."""
COLUMNS = ("train accuracy", "test accuracy", "test ece", "test ece signed", "test nll", "mean steps")


def peers(scale: Scale) -> list[Experiment]:
    return scale.experiments(PEERS, scale.benchmarks[:1])


def ablations(scale: Scale) -> list[Experiment]:
    """Preset `paper` has the defaults of RIC: settings that equal them are left out."""
    others = [
        name for name in SETTINGS if scale.preset != "paper" or replace(RIC(), **find_system(name).changes) != RIC()
    ]
    single = scale.experiments(others, scale.benchmarks[:1])
    if scale.name != "paper":
        single = [replace(one, seeds=one.seeds[:1]) for one in single]
    return scale.experiments(ABLATIONS, scale.benchmarks[:1]) + single


def measure(runs: Sequence[RunRecord]) -> pd.DataFrame:
    found = kit.measure(runs, COLUMNS)
    if runs[0].config.get("calibration") == "temperature":
        fits = [(run.evaluation.get("fitted") or {}).get("calibration") or {} for run in runs]
        found["unfitted"] = sum(not fit.get("found", True) for fit in fits)  # unknown for the oldest runs
    return found


def write(table: pd.DataFrame, *, notes: Callable[[pd.DataFrame], list[str]]) -> dict[str, str]:
    titles = ["System", "Seeds", *(kit.METRICS[name].title for name in COLUMNS)]
    lines = []
    for system, own in table.groupby("system", sort=False):
        scores = [kit.write_cell(kit.METRICS[name], own[own.quantity == name]) for name in COLUMNS]
        lines.append([Cell(text) for text in (str(system) + kit.mark(own), f"{own.seeds.iloc[0]:.0f}", *scores)])
    words = " ".join([kit.facts(table), *notes(table), *kit.gaps(table)])
    return {"md": kit.write_markdown(Grid(titles, lines), words)}


def _peer_notes(table: pd.DataFrame) -> list[str]:
    """Name the seeds whose temperature stayed at 1, since their rows say nothing about temperatures."""
    unfitted = table[table["unfitted"] > 0].drop_duplicates("system") if "unfitted" in table else table[:0]
    return [
        "Temperatures are fitted on validation data.",
        *(
            f"{row.system}: in {row.unfitted:.0f} of {row.seeds:.0f} seeds no finite temperature is best, as when no "
            "validation answer is wrong, and it stays at 1."
            for row in unfitted.itertuples()
        ),
        "Evidential takes its evidence by softplus and keeps the weight of its KL term constant, without annealing;",
        "LogitNorm reports the softmax of the normalised logits.",
    ]


def _ablation_notes(table: pd.DataFrame) -> list[str]:
    """Notes on names, readouts and the control."""
    notes = [
        "RIC has the preset's settings; a name with a colon, as `ric compare --methods` takes it, changes one of them.",
        "Both readouts share RIC's weights.",
        "Anytime is a control, not an ablation of one part: it lacks the Dirichlet, sampling, the value and halting.",
    ]
    alone = "With rollouts=1 there is no other roll-out of an input to compare with, and the value is the baseline."
    return notes + [alone] * (ALONE in kit.distinct(table, "system"))


ITEMS = (
    kit.item("peers", "RIC beside other ways to calibrate", peers, measure, write=partial(write, notes=_peer_notes)),
    kit.item(
        "ablations", "RIC's ablations and controls", ablations, measure, write=partial(write, notes=_ablation_notes)
    ),
)
