from ricnet.report.tables import Cell
from ricnet.studies.paper.typesetting import latex, markdown, write_interval

LINES = [[Cell("SL"), Cell("98.9 ± 0.3", best=True)], [Cell("RIC"), Cell("–")]]


def test_markdown() -> None:
    text = markdown(["System", "9 % flipped"], "lr", LINES, ["A note."])
    assert text.splitlines() == [
        "| System | 9 % flipped |",
        "| :--- | ---: |",
        "| SL | **98.9 ± 0.3** |",
        "| RIC | – |",
        "",
        "A note.",
    ]


def test_latex_is_escaped_and_closed() -> None:
    text = latex([r"System & 9 \% flipped \\"], "lr", LINES, "Table_1", ["95 % of a & b."])
    assert r"SL & \textbf{98.9 $\pm$ 0.3} \\" in text
    assert r"RIC & -- \\" in text
    assert r"\caption{\textbf{Table\_1.} 95 \% of a \& b.}" in text
    for name in ("table", "tabular"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") == 1
    assert text.count("{") == text.count("}")


def test_intervals_as_text() -> None:
    assert write_interval(0.91234, 0.0049, 2, 100) == "91.23 ± 0.49"
    assert write_interval(0.5, None, 3) == "0.500"
    assert write_interval(-0.0214, 0.001, 3) == "−0.021 ± 0.001"
    assert write_interval(-0.0002, None, 3) == "0.000"
    assert write_interval(None, None, 3) == "–"
