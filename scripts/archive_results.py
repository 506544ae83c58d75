"""Keep what is worth publishing of finished runs: one JSON file each, without weights.

    python scripts/archive_results.py RUN [RUN ...] --to results/NAME

`python scripts/write_results.py` then writes their table into README.md and docs/results.md.
"""

import argparse
import sys
from pathlib import Path

from ricnet.errors import RicnetError
from ricnet.report.archive import archive_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder that ric train or ric compare wrote")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="folder for the files")
    arguments = parser.parse_args()
    try:
        for run in arguments.runs:
            path = archive_run(run, arguments.to)
            print(f"{path}  {path.stat().st_size / 1000:.0f} kB")
    except RicnetError as error:
        sys.exit(f"archive_results: {error}")


if __name__ == "__main__":
    main()
