"""The few pieces of HTML that every part of the page is made of. All text passes `escape` here, on its way in."""

from collections.abc import Iterable
from html import escape
from typing import Any

from ricnet.report.tables import Grid


def paragraph(text: str, kind: str = "") -> str:
    opening = f'<p class="{kind}">' if kind else "<p>"
    return f"{opening}{escape(text)}</p>" if text else ""


def terms(pairs: Iterable[tuple[str, Any]]) -> str:
    return "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape('–' if value is None else str(value))}</dd></div>"
        for name, value in pairs
    )


def details(title: str, aside: str, content: str, *, is_open: bool) -> str:
    """`content` is HTML already."""
    heading = f'<h3>{escape(title)}</h3> <span class="aside">{escape(aside)}</span>'
    return f'<details class="system"{" open" * is_open}><summary>{heading}</summary>\n{content}</details>'


def html_table(name: str, grid: Grid) -> str:
    """The first cell of a row is its heading. Wide tables scroll inside their own box, also with the keyboard."""
    kinds = ["" if grid.is_number(i) else ' class="word"' for i in range(len(grid.titles))]
    head = "".join(f'<th scope="col"{kind}>{escape(t)}</th>' for t, kind in zip(grid.titles, kinds, strict=True))
    lines = []
    for row in grid.rows:
        first, *texts = (f"<strong>{escape(cell.text)}</strong>" if cell.best else escape(cell.text) for cell in row)
        rest = "".join(f"<td{kind}>{text}</td>" for kind, text in zip(kinds[1:], texts, strict=True))
        lines.append(f'<tr><th scope="row" class="word">{first}</th>{rest}</tr>')
    body = "\n".join(lines)
    return scrolling(name, f'<table class="numbers"><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>')


def scrolling(name: str, content: str) -> str:
    """A box that takes the keyboard, so that keys can scroll it too; `content` is HTML already."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(name)}">{content}</div>'
