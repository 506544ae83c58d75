"""Draw the belief of a model after each step for some of the test images stored with it.

    python scripts/draw_prediction.py pretrained:cifar10 --rows 5 9 --out docs/images/prediction.png

Without --rows, images that are classified early, late and wrongly are chosen.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from filmstrip import filmstrip_figure
from ricnet.errors import RicnetError
from ricnet.evaluation.examples import Examples
from ricnet.models.loading import load
from ricnet.models.locate import locate
from ricnet.report.examples import telling_rows
from ricnet.report.figures import house_style
from ricnet.report.runs import RunRecord, read_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN", help="run folder, or pretrained:NAME")
    parser.add_argument("--rows", type=int, nargs="+", help="places among the stored examples, from 0")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="picture to write, .png or .pdf")
    arguments = parser.parse_args()
    try:
        run = read_run(locate(arguments.run))
        examples = refined(run)
        rows = telling_rows(examples, 3) if arguments.rows is None else arguments.rows
        draw(run, examples, rows, arguments.out)
    except RicnetError as error:
        sys.exit(f"draw_prediction: {error}")


def refined(run: RunRecord) -> Examples:
    """Refine the stored images with the model."""
    if run.examples is None or run.examples.inputs.ndim != 4:
        raise RicnetError(f"{run.path} holds no images as examples: train on images, or give another run.")
    path = load(run.path).refine(run.examples.inputs, halt=False)
    values = None if path.values is None else path.values.numpy()
    beliefs, halt = path.log_beliefs.numpy(), path.halt_step.numpy()
    return replace(run.examples, log_beliefs=beliefs, values=values, halt_step=halt)


def draw(run: RunRecord, examples: Examples, rows: list[int], out: Path) -> None:
    unknown = [row for row in rows if not 0 <= row < len(examples.labels)]
    if unknown:
        raise RicnetError(f"--rows {unknown[0]} is out of range: {run.path} holds {len(examples.labels)} examples.")
    with house_style():
        filmstrip_figure(examples, run.class_names, rows, run.halt_threshold).savefig(out, dpi=200)


if __name__ == "__main__":
    main()
