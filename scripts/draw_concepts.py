"""Draw the pictures of docs/concepts.md from a run of RIC on small images.

ric train digits --epochs 40 --halt-rule value --calibration none
python scripts/draw_concepts.py runs/digits-ric-on-policy-seed0 --out docs/images
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from filmstrip import filmstrip_figure
from ricnet.core.policies import Dirichlet, Readout
from ricnet.errors import RicnetError
from ricnet.evaluation.examples import Examples
from ricnet.methods import RIC
from ricnet.models.classifier import Classifier
from ricnet.models.loading import load
from ricnet.models.locate import locate
from ricnet.report.examples import refinement_figure, telling_rows
from ricnet.report.figures import FAINT, house_style, styled
from ricnet.report.pictures import halting, reliability
from ricnet.report.runs import RunGroup, RunRecord, read_run

LABELS: dict[Readout, str] = {
    "mean": "mean, α/Σα (the paper)",
    "mu": "mu, the softmax",
    "implied": "implied, ∝ 1/ψ'(α)",
}
DASHES = {"mean": "-", "mu": (0, (4, 2)), "implied": (0, (1, 1.5))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN", help="run folder of RIC")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the pictures")
    arguments = parser.parse_args()
    try:
        draw_all(arguments.run, arguments.out)
    except RicnetError as error:
        sys.exit(f"draw_concepts: {error}")


def draw_all(name: str, out: Path) -> list[Path]:
    run, model = read_run(locate(name)), load(name)
    examples = run.examples
    if not isinstance(model.method, RIC) or examples is None or examples.inputs.ndim != 4:
        raise RicnetError(f"{name} is not a run of RIC with images as examples: give one, such as a run on digits.")
    out.mkdir(parents=True, exist_ok=True)
    return [_save(out / f"concepts-{name}.png", draw) for name, draw in _pictures(run, examples, model).items()]


def _pictures(run: RunRecord, examples: Examples, model: Classifier) -> dict[str, Callable[[], Figure]]:
    group = RunGroup(run.label, (run,))
    undecided = [int(np.argmax(examples.halt_step))]
    return {
        "belief": lambda: filmstrip_figure(examples, run.class_names, undecided, run.halt_threshold),
        "value": lambda: refinement_figure(run, telling_rows(examples)),
        "halting": lambda: halting([group]).figure,
        "calibration": lambda: reliability([group]).figure,
        "readouts": lambda: readouts_figure(model, examples),
    }


def _save(path: Path, draw: Callable[[], Figure]) -> Path:
    with house_style():
        draw().savefig(path, dpi=200)
    return path


@styled
def readouts_figure(model: Classifier, examples: Examples) -> Figure:
    """Readouts of the same policy (left) and of a whole run (right)."""
    figure = Figure(figsize=(6.6, 2.7), layout="constrained")
    policies, run = figure.subplots(1, 2)
    _draw_policies(policies)
    for readout in get_args(Readout):
        shares = belief_in_truth(model, examples, readout)
        run.plot(np.arange(1, len(shares) + 1), shares, linestyle=DASHES[readout], label=LABELS[readout])
    run.set(title="stored examples of the run", xlabel="step", ylabel="mean belief in the true class", ylim=(0, 1))
    run.set_xticks([1, *range(5, len(shares) + 1, 5)])
    run.legend(loc="lower right")
    return figure


def _draw_policies(ax: Axes) -> None:
    """Ten classes, nine of them equally likely. The wider the policy, the further its mean is below the implied
    belief."""
    share = torch.linspace(0.1, 0.999, 200, dtype=torch.float64)
    rest = ((1 - share) / 9).unsqueeze(-1).expand(-1, 9)
    log_mu = torch.cat([share.unsqueeze(-1), rest], dim=-1).log()
    for c, dash in ((1.0, "-"), (10.0, (0, (4, 2))), (100.0, (0, (1, 1.5)))):
        policy = Dirichlet.around(log_mu, torch.full_like(share, c), 0.01)
        mean, implied = (policy.read(readout)[:, 0].exp().numpy() for readout in ("mean", "implied"))
        ax.plot(mean, implied, linestyle=dash, label=f"c = {c:g}")
    ax.plot([0.1, 1], [0.1, 1], color=FAINT, linewidth=0.8, zorder=0)
    ax.set(title="one policy", xlabel="mean belief in a class", ylabel="implied belief in it", ylim=(0, 1))
    ax.legend(loc="lower right")


def belief_in_truth(model: Classifier, examples: Examples, readout: Readout) -> np.ndarray:
    """Belief in the true class after each step, without halting."""
    assert isinstance(model.method, RIC)
    reading = replace(model, method=replace(model.method, readout=readout))
    log_beliefs = reading.refine(examples.inputs, halt=False).log_beliefs
    labels = torch.as_tensor(examples.labels).expand(len(log_beliefs), -1)
    means: np.ndarray = log_beliefs.gather(-1, labels[..., None]).exp().mean(dim=(1, 2)).numpy()
    return means


if __name__ == "__main__":
    main()
