"""The report in a real browser: small and large screens, light and dark mode, keyboard."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WIDTHS = (360, 768, 1280)
TOO_WIDE = """() => [...document.querySelectorAll('body *')]
    .filter(e => !e.closest('.scroll, pre') && e.getBoundingClientRect().right > innerWidth + 1)
    .map(e => e.tagName + '.' + e.className)"""

OPEN_ALL = "document.querySelectorAll('details').forEach(part => part.open = true)"
FIGURES = """() => [...document.querySelectorAll('figure')].map(figure => ({
    caption: figure.querySelector('figcaption').innerText.length,
    sizes: [...figure.querySelectorAll('img, svg')].map(e => e.getBoundingClientRect()).map(b => [b.width, b.height])
}))"""


@pytest.fixture
def page(browser: "Browser", comparison_file: Path) -> Iterator["Page"]:
    """The opened page; it must load nothing but itself and log nothing."""
    requests: list[str] = []
    complaints: list[str] = []
    context = browser.new_context(viewport={"width": WIDTHS[-1], "height": 800})
    opened = context.new_page()
    opened.on("request", lambda request: requests.append(request.url))
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(comparison_file.as_uri())
    yield opened
    context.close()
    assert [url for url in requests if not url.startswith("data:")] == [comparison_file.as_uri()]
    assert complaints == []


def test_nothing_hangs_over_the_edge(page: "Page") -> None:
    page.evaluate(OPEN_ALL)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(TOO_WIDE) == []
    page.emulate_media(media="print")  # A4 between margins of 15 mm, in CSS pixels
    page.set_viewport_size({"width": 680, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 680


def test_the_results_need_no_scrolling_on_a_laptop(page: "Page") -> None:
    page.set_viewport_size({"width": 1200, "height": 800})
    assert page.evaluate("(e => e.scrollWidth - e.clientWidth)(document.querySelector('header .scroll'))") <= 0


def test_every_figure_is_seen_and_explained(page: "Page", comparison_file: Path) -> None:
    count = comparison_file.read_text(encoding="utf-8").count("<figure")
    assert count > 7 + 3 * 12
    page.evaluate(OPEN_ALL)
    for width in (WIDTHS[0], WIDTHS[-1]):
        page.set_viewport_size({"width": width, "height": 800})
        figures = page.evaluate(FIGURES)
        assert len(figures) == count
        assert all(figure["caption"] > 3 and figure["sizes"] for figure in figures)
        assert all(min(size) > 20 for figure in figures for size in figure["sizes"])
    broken = "[...document.images].filter(image => !image.complete || !image.naturalWidth).length"
    assert page.evaluate(broken) == 0


def test_dark_pages_are_dark_and_paper_is_white(page: "Page") -> None:
    colours = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    found = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found[scheme] = [brightness(colour) for colour in page.evaluate(colours)]
    page.emulate_media(color_scheme="dark", media="print")
    found["paper"] = [brightness(colour) for colour in page.evaluate(colours)]
    assert all(paper - ink > 180 for paper, ink in (found["light"], found["paper"]))
    assert found["dark"][1] - found["dark"][0] > 180


def brightness(colour: str) -> float:
    """Of `rgb(253, 253, 252)`."""
    return sum(int(part) for part in colour.strip("rgb()").split(",")[:3]) / 3


def test_the_keyboard_opens_what_is_folded_and_scrolls_what_is_wide(page: "Page") -> None:
    folded = page.locator("#gallery details").nth(1)
    assert folded.get_attribute("open") is None
    folded.locator("summary").focus()
    page.keyboard.press("Enter")
    assert folded.get_attribute("open") is not None
    assert folded.locator("img").first.is_visible()
    page.keyboard.press("Space")
    assert folded.get_attribute("open") is None
    page.set_viewport_size({"width": WIDTHS[0], "height": 800})
    table = page.locator(".scroll").first
    table.focus()
    page.keyboard.press("ArrowRight")
    for _ in range(100):  # scrolling takes time, and the page's policy forbids wait_for_function
        if table.evaluate("box => box.scrollLeft") > 0:
            break
        page.wait_for_timeout(20)
    assert table.evaluate("box => box.scrollLeft") > 0
