"""Time and memory of reading a CSV table, compared with `pandas.read_csv`. Linux only: peak memory is read from /proc.

    python benchmarks/tables.py [--rows 2000000] [--json FILE]

The table has 12 columns: 4 of real numbers, 2 of them with gaps, 4 of integers, 3 of categories, and the class. Each
reader runs in its own process: `pandas.read_csv` parses the file, `read_table` stores its cells, and `load` also
decides the kind of each column, encodes it and makes the three splits.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

ROWS = 2_000_000
READERS = {
    "pandas.read_csv": ("import pandas", "pandas.read_csv(path)"),
    "ricnet read_table": ("from ricnet.data import read_table", "read_table(Path(path))"),
    "ricnet load": ("from ricnet.data import load", "load(path, target='kind')"),
}
READ = """
import json, sys, time
from pathlib import Path
path = sys.argv[1]
{imports}
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the imports
before, start, used = peak(), time.perf_counter(), time.process_time()
read = {call}
seconds, cpu = time.perf_counter() - start, time.process_time() - used
print(json.dumps(dict(seconds=seconds, cpu=cpu, peak_mb=peak() - before)))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        made_up(given.rows).to_csv(path, index=False)
        megabytes = path.stat().st_size / 1e6
        found = {name: read(path, *how) for name, how in READERS.items()}
    print(f"{given.rows:,} rows, 12 columns, {megabytes:.0f} MB")
    print(f"{'reader':20}{'s':>8}{'CPU s':>8}{'peak MB':>10}{'× pandas (CPU)':>16}")
    for name, numbers in found.items():
        ratio = numbers["cpu"] / found["pandas.read_csv"]["cpu"]
        print(f"{name:20}{numbers['seconds']:8.2f}{numbers['cpu']:8.2f}{numbers['peak_mb']:10.0f}{ratio:16.1f}")
    if given.json:
        given.json.write_text(json.dumps({"rows": given.rows, "megabytes": megabytes, "readers": found}, indent=1))


def made_up(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    columns: dict[str, object] = {f"real{i}": rng.normal(size=rows).round(6) for i in range(4)}
    for name in ("real2", "real3"):
        columns[name] = np.where(rng.random(rows) < 0.1, np.nan, columns[name])
    columns |= {f"whole{i}": rng.integers(0, 10 ** (i + 2), rows) for i in range(4)}
    columns |= {f"colour{i}": rng.choice(["red", "green", "blue", "", "dark grey"], rows) for i in range(3)}
    return pd.DataFrame(columns | {"kind": rng.choice(["a", "b", "c"], rows)})


def read(path: Path, imports: str, call: str) -> dict[str, float]:
    """Seconds and peak memory of one reader, without its imports."""
    code = READ.format(imports=imports, call=call)
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main()
