"""A matplotlib figure as SVG that lives inside an HTML page and follows its light or dark colours."""

import io
import re
from html import escape

from matplotlib.figure import Figure

from ricnet.report.style import BLUE, FAINT, INK, house_style

PAGE_COLOURS = {
    INK: "currentColor",
    FAINT: "color-mix(in srgb, currentColor 50%, transparent)",
    BLUE: "var(--accent)",
}


def inline_svg(figure: Figure, name: str, alt: str) -> str:
    """`name` keeps the ids of several figures on one page apart; `alt` is what a screen reader says."""
    with io.StringIO() as text, house_style():
        figure.savefig(text, format="svg", transparent=True)
        drawing = text.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    drawing = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r'\bid="', f'id="{name}-', drawing)
    drawing = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", drawing)
    for colour, name in PAGE_COLOURS.items():
        drawing = drawing.replace(colour, name)
    return _opening(figure, alt) + drawing[drawing.index(">") + 1 :]


def _opening(figure: Figure, alt: str) -> str:
    """Up to a third larger than drawn where there is room, never so small that its letters cannot be read."""
    width, height = (72 * inches for inches in figure.get_size_inches())
    size = f"min-width: {0.85 * width:.0f}pt; max-width: {1.35 * width:.0f}pt"
    label = escape(alt)
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{label}" style="{size}">'
