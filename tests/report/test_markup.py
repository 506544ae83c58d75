from ricnet.report.markup import details, paragraph, scrolling, table, terms
from ricnet.report.tables import Cell

EVIL = '<b> & "x"'
SAFE = "&lt;b&gt; &amp; &quot;x&quot;"


def test_text_is_escaped_wherever_it_goes() -> None:
    grid = table(EVIL, [EVIL], [True], [[Cell(EVIL)]])
    parts = [paragraph(EVIL), scrolling(EVIL, ""), terms([(EVIL, EVIL)]), details(EVIL, EVIL, "", is_open=True), grid]
    for part in parts:
        assert SAFE in part
        assert "<b>" not in part


def test_a_row_s_first_cell_is_its_heading_and_merit_is_bold() -> None:
    grid = table("name", ["System", "ECE"], [False, True], [[Cell("RIC"), Cell("0.1", best=True)]])
    assert '<th scope="row" class="word">RIC</th><td><strong>0.1</strong></td>' in grid
    assert '<th scope="col" class="word">System</th><th scope="col">ECE</th>' in grid


def test_nothing_is_said_in_no_paragraph() -> None:
    assert paragraph("") == ""
    assert "<dd>–</dd>" in terms([("x", None)])
    assert '<details class="system"><summary>' in details("a", "b", "", is_open=False)
