"""A matplotlib figure as SVG that lives inside an HTML page and follows its light or dark colours."""

import io
import re
from html import escape

from matplotlib.figure import Figure

from ricnet.report.style import BLUE, BROWN, FAINT, INDIGO, INK, WINE, house_style

PAGE_COLOURS = {
    INK: "currentColor",
    FAINT: "color-mix(in srgb, currentColor 50%, transparent)",
    BLUE: "var(--accent)",
    INDIGO: "var(--indigo)",
    WINE: "var(--wine)",
    BROWN: "var(--brown)",
}
"""Colours that would not be seen on a dark page; the page's style sheet knows both shades of each."""


def inline_svg(figure: Figure, name: str, alt: str) -> str:
    """`name` keeps the ids of several figures on one page apart; `alt` is what a screen reader says."""
    with io.StringIO() as text, house_style():
        figure.savefig(text, format="svg", transparent=True)
        drawing = text.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    drawing = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r'\bid="', f'id="{name}-', drawing)
    drawing = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", drawing)
    drawing = re.sub(r' d="[^"]*"', _rounded, drawing)
    for colour, page_colour in PAGE_COLOURS.items():
        drawing = drawing.replace(colour, page_colour)
    return _opening(figure, alt) + drawing[drawing.index(">") + 1 :]


def _rounded(path: re.Match[str]) -> str:
    """A hundredth of a point is less than any screen shows, and a third of the page's bytes lie beyond it."""
    return re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", path[0]).replace("\n", "")


def _opening(figure: Figure, alt: str) -> str:
    """Up to a third larger than drawn where there is room, never so small that its letters cannot be read."""
    width, height = (72 * inches for inches in figure.get_size_inches())
    size = f"min-width: {0.85 * width:.0f}pt; max-width: {1.35 * width:.0f}pt"
    label = escape(alt)
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{label}" style="{size}">'
