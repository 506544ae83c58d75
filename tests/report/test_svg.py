import re

from matplotlib.figure import Figure

from ricnet.report.figures import BLUE, FAINT, INDIGO, INK, inline_svg, styled


@styled
def drawing() -> Figure:
    figure = Figure(figsize=(2, 1))
    ax = figure.subplots()
    for shade in (BLUE, INDIGO, INK, FAINT):
        ax.plot([0, 1 / 3], [0, 2 / 3], color=shade)
    return figure


def test_colours_follow_the_page() -> None:
    svg = inline_svg(drawing(), "x", "")
    assert all(name in svg for name in ("var(--accent)", "var(--indigo)", "currentColor"))
    assert not any(shade in svg for shade in (BLUE, INDIGO, INK, FAINT))


def test_ids_carry_the_figure_s_name() -> None:
    svg = inline_svg(drawing(), "steps", "")
    ids = set(re.findall(r'\bid="([^"]+)"', svg))
    assert ids
    assert all(name.startswith("steps-") for name in ids)
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg)) <= ids


def test_paths_are_rounded_and_transforms_are_not() -> None:
    svg = inline_svg(drawing(), "x", "")
    assert not re.search(r"\.\d{3}", "".join(re.findall(r' d="([^"]*)"', svg)))
    assert "scale(0.015625)" in svg


def test_the_alternative_text_is_escaped() -> None:
    assert 'aria-label="&lt;b&gt; &quot;x&quot;"' in inline_svg(drawing(), "x", '<b> "x"')
