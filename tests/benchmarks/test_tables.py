import json
import sys
from pathlib import Path

import pytest

from tables import READ, READERS, made_up, read


def test_each_reader_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.csv"
    made_up(500).to_csv(table, index=False)
    found = [read(table, "", "Path(path).read_text()")]  # in its own process; the others in this one, which is faster
    monkeypatch.setattr(sys, "argv", ["read", str(table)])
    for imports, call in READERS.values():
        exec(READ.format(imports=imports, call=call), {})
        found.append(json.loads(capsys.readouterr().out))
    assert all(numbers["cpu"] > 0 and numbers["peak_mb"] >= 0 for numbers in found)
