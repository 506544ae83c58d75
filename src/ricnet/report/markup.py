"""The few pieces of HTML that every part of the page is made of. All text passes `escape` here, on its way in."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from ricnet.report.tables import Cell


def paragraph(text: str, kind: str = "") -> str:
    return f"<p{_class(kind)}>{escape(text)}</p>" if text else ""


def scrolling(name: str, content: str) -> str:
    """Wide things scroll inside their own box; the box takes the keyboard, so that keys can scroll it too."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(name)}">{content}</div>'


def table(name: str, titles: Sequence[str], numeric: Sequence[bool], rows: Iterable[Sequence[Cell]]) -> str:
    """The first cell of a row is its heading."""
    kinds = [_class("" if is_number else "word") for is_number in numeric]
    head = "".join(f'<th scope="col"{kind}>{escape(title)}</th>' for title, kind in zip(titles, kinds, strict=True))
    body = "\n".join(_row(cells, kinds) for cells in rows)
    return scrolling(name, f'<table class="numbers"><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>')


def _row(cells: Sequence[Cell], kinds: Sequence[str]) -> str:
    texts = [f"<strong>{escape(cell.text)}</strong>" if cell.best else escape(cell.text) for cell in cells]
    rest = "".join(f"<td{kind}>{text}</td>" for kind, text in zip(kinds[1:], texts[1:], strict=True))
    return f'<tr><th scope="row" class="word">{texts[0]}</th>{rest}</tr>'


def terms(pairs: Iterable[tuple[str, Any]]) -> str:
    return "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape('–' if value is None else str(value))}</dd></div>"
        for name, value in pairs
    )


def details(title: str, aside: str, content: str, *, is_open: bool) -> str:
    """`content` is HTML already."""
    heading = f'<h3>{escape(title)}</h3> <span class="aside">{escape(aside)}</span>'
    return f'<details class="system"{" open" * is_open}><summary>{heading}</summary>\n{content}</details>'


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
