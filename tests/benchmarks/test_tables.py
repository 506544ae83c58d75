from pathlib import Path

from tables import READERS, made_up, read


def test_each_reader_is_measured(tmp_path: Path) -> None:
    made_up(500).to_csv(tmp_path / "table.csv", index=False)
    found = {name: read(tmp_path / "table.csv", *how) for name, how in READERS.items()}
    assert all(numbers["cpu"] > 0 and numbers["peak_mb"] >= 0 for numbers in found.values())
