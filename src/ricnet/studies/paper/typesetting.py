"""A table as text: Markdown to read anywhere, LaTeX (booktabs) to \\input."""

from collections.abc import Sequence

from ricnet.report.tables import Cell, escape_latex

Lines = Sequence[Sequence[Cell]]
NEEDS = r"% needs \usepackage{booktabs}, \usepackage{graphicx} and \usepackage[T1]{fontenc}"
SHRINK = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
"""To the width of the text where the table is wider, and only there."""


def markdown(titles: Sequence[str], columns: str, lines: Lines, notes: Sequence[str]) -> str:
    """`columns` as LaTeX spells it: l for names, r for numbers."""
    head = [list(titles), [":---" if column == "l" else "---:" for column in columns]]
    body = [[f"**{cell.text}**" if cell.best else cell.text for cell in line] for line in lines]
    table = "\n".join(f"| {' | '.join(line)} |" for line in head + body)
    return "\n\n".join([table, *notes]) + "\n"


def latex(head: Sequence[str], columns: str, lines: Lines, caption: str, notes: Sequence[str]) -> str:
    """`head` is LaTeX already, for titles may span columns; all else is plain text."""
    body = [" & ".join(_latex_cell(cell) for cell in line) + r" \\" for line in lines]
    tabular = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *head, r"\midrule", *body, r"\bottomrule"]
    words = rf"\textbf{{{escape_latex(caption)}.}} {escape_latex(' '.join(notes))}"
    opening = [NEEDS, r"\begin{table}", r"\centering", r"\footnotesize", r"\setlength{\tabcolsep}{4pt}", SHRINK]
    closing = [r"\end{tabular}}", rf"\caption{{{words}}}", r"\end{table}"]
    return "\n".join([*opening, *tabular, *closing]) + "\n"


def write_interval(mean: float | None, half_width: float | None, digits: int, factor: int = 1) -> str:
    """Mean ± half-width; the mean alone where one seed gives no interval, a dash where there is no number at all."""
    if mean is None:
        return "–"
    spread = "" if half_width is None else f" ± {factor * half_width:.{digits}f}"
    # Rounded first, plus 0: no number is written as −0.
    return f"{round(factor * mean, digits) + 0.0:.{digits}f}".replace("-", "−") + spread


def _latex_cell(cell: Cell) -> str:
    text = escape_latex(cell.text)
    return rf"\textbf{{{text}}}" if cell.best else text
