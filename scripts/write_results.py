"""Write the tables of README.md and docs/results.md, and the figures of results/, from the runs archived there.

python scripts/write_results.py            # write
python scripts/write_results.py --check    # write nothing; fail if a text is not what the runs give
"""

import argparse
import sys
from pathlib import Path

from ricnet.errors import RicnetError
from ricnet.report.figures import house_style
from ricnet.report.pace import pace_figure
from ricnet.report.published import CURVES, archived, fill, read_groups
from ricnet.report.titles import ALGORITHMS

ROOT = Path(__file__).parents[1]
TEXTS = ("README.md", "docs/results.md")
COMPARED = (*ALGORITHMS, "SL")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a text is not what the runs give")
    check = parser.parse_args().check
    try:
        if not check:
            draw_curves(ROOT / "results")
        stale = [name for name in TEXTS if refresh(ROOT / name, ROOT / "results", write=not check)]
    except RicnetError as error:
        sys.exit(f"write_results: {error}")
    if check and stale:
        sys.exit(f"write_results: {' and '.join(stale)} is not what results/ gives; run scripts/write_results.py.")


def refresh(path: Path, results: Path, *, write: bool) -> bool:
    """Whether the text was not what the runs give."""
    old = path.read_text(encoding="utf-8")
    new = fill(old, results, path.name)
    if write and new != old:
        path.write_text(new, encoding="utf-8")
        print(f"{path.name}: written")
    return new != old


def draw_curves(results: Path) -> None:
    """SL and RIC's algorithms, where any was trained; the rest would hide them."""
    for name in archived(results):
        shown = [group for group in read_groups(results / name) if group.first.method in COMPARED]
        if any(run.metrics for group in shown for run in group.runs):
            with house_style():
                pace_figure(shown).savefig(results / name / CURVES, dpi=200)
            print(f"results/{name}/{CURVES}: drawn")


if __name__ == "__main__":
    main()
