"""The page in a real browser: uploads, wrong files, a slow connection, keyboard, dark mode and a small screen."""

import io
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

import ricnet
from ricnet.models.classifier import Classifier

from .conftest import serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

REFUSED = re.compile(r"Failed to load resource.*(422|ERR_FAILED)")
"""What Chromium itself writes to its console about every refusal."""
TOO_WIDE = """() => [...document.querySelectorAll('body *')]
    .filter(e => !e.closest('.samples, .unseen') && e.getBoundingClientRect().right > innerWidth + 1)
    .map(e => e.tagName + '.' + e.className)"""
FOCUS = "(e => e.id || e.className || e.tagName)(document.activeElement)"
LENGTHS = "bars => [...bars.querySelectorAll('.fill')].map(bar => new DOMMatrix(getComputedStyle(bar).transform).a)"


@pytest.fixture
def visit(browser: "Browser") -> Iterator[Any]:
    """Opens the page of a server, by default without motion; checks for no other requests and no errors."""
    seen: list[tuple[str, list[str], list[str]]] = []
    contexts = []

    def opened(client: httpx.Client, path: str = "/", still: bool = True, **look: Any) -> "Page":
        look = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce" if still else None, **look}
        context = browser.new_context(**look)
        context.set_default_timeout(10_000)
        contexts.append(context)
        page = context.new_page()
        requests: list[str] = []
        complaints: list[str] = []
        seen.append((str(client.base_url).rstrip("/"), requests, complaints))
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(str(client.base_url.join(path)))
        return page

    yield opened
    for context in contexts:
        context.close()
    for home, requests, complaints in seen:
        assert [url for url in requests if not url.startswith((home, "blob:"))] == []
        assert [words for words in complaints if not REFUSED.match(words)] == []


def until(page: "Page", truth: str) -> None:
    """The page's own policy forbids wait_for_function to look."""
    for _ in range(500):
        if page.evaluate(truth):
            return
        page.wait_for_timeout(20)
    pytest.fail(f"never: {truth}")


def answered(page: "Page") -> str:
    until(page, "/answers/.test(document.getElementById('status').textContent)")
    return page.locator("#status").inner_text()


def image_of(pixels: np.ndarray | torch.Tensor, name: str = "mine.png") -> Any:
    with io.BytesIO() as file:
        Image.fromarray(np.asarray(pixels)).save(file, "png")
        return {"name": name, "mimeType": "image/png", "buffer": file.getvalue()}


def test_a_sample_is_shown_at_once(visit: Any, client: httpx.Client) -> None:
    page = visit(client)
    assert re.fullmatch(r"It answers \d, [\d.]+ % sure, (and stops after [123] of|after all) 4 steps\.", answered(page))
    assert re.search("RIC(, on-policy)? on digits, 10 classes", page.locator("#model").inner_text())
    assert page.locator("#samples button").count() == len(client.get("/v1/examples").json())
    assert page.locator("#samples [aria-pressed=true]").count() == 1
    assert page.locator("#preview").get_attribute("alt").startswith("A test image of")  # type: ignore[union-attr]
    assert "its strongest rival  all others." in page.locator("#caption").text_content()  # type: ignore[operator]


@pytest.mark.parametrize("width", [1280, 390])
def test_what_a_sample_is_fits_on_a_line_below_it(visit: Any, client: httpx.Client, width: int) -> None:
    page = visit(client, viewport={"width": width, "height": 900})
    answered(page)
    words = "[...document.querySelectorAll('.samples .kind')]"
    line = page.evaluate(f"{words}.map(e => e.textContent = 'easy') && {words}[0].clientHeight")
    page.evaluate(f"{words}.forEach(e => e.textContent = 'confused')")  # the longest there is
    assert page.evaluate(f"{words}.every(e => e.clientHeight === {line} && e.scrollWidth <= e.clientWidth)")


def test_an_upload_shows_the_model_s_own_beliefs(
    visit: Any, client: httpx.Client, digits: Classifier, inputs: torch.Tensor
) -> None:
    page = visit(client)
    answered(page)
    with page.expect_response("**/v1/predict"):
        page.locator("#file").set_input_files(image_of(inputs[-1, 0]))
    answered(page)
    assert "mine.png" in page.locator("#preview").get_attribute("alt")  # type: ignore[operator]
    until(page, "document.querySelectorAll('#samples [aria-pressed=true]').length === 0")
    path = digits.refine(inputs[-1:], halt=False)
    halt = int(path.halt_step[0])
    until(page, f"document.getElementById('step').value == {halt}")
    slider, bars = page.locator("#step"), page.locator("#bars")
    assert np.allclose(bars.evaluate(LENGTHS), path.log_beliefs[halt - 1, 0].exp(), atol=2e-3)
    for step in (0, 1, 4):
        slider.fill(str(step))
        expected = torch.full((10,), 0.1) if step == 0 else path.at(step)[0].exp()
        assert np.allclose(bars.evaluate(LENGTHS), expected, atol=2e-3)
        shares = [float(text.split()[0]) for text in bars.locator(".share").all_inner_texts()]
        assert np.allclose(shares, 100 * expected, atol=0.06)
    alone, always = page.locator(".end").all_inner_texts()
    assert f"after {halt} step" in alone
    assert "All 4 steps" in always
    assert f"{100 * path.log_beliefs[-1, 0].exp().max():.1f} %" in always


def test_the_value_is_drawn_and_where_it_crosses(visit: Any, client: httpx.Client, digits: Classifier) -> None:
    page = visit(client)
    answered(page)
    assert page.locator("#chart .value").count() == 1
    stops = page.locator("#ends .end").first
    if "Stops by itself" in stops.inner_text():
        assert page.locator("#chart .crossing").count() == 1
    label = page.locator("#chart svg").get_attribute("aria-label")
    assert label is not None
    assert re.search(r"in percent: 10, (\d+, ){3}\d+\. It (stops after step \d|takes every step)\.", label)
    box = page.locator("#chart svg").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] - 12, box["y"] + 60)
    assert page.locator("#step").input_value() == "4"


def test_a_wrong_file_shows_an_error_and_the_next_one_works(
    visit: Any, client: httpx.Client, inputs: torch.Tensor
) -> None:
    page = visit(client)
    answered(page)
    page.locator("#file").set_input_files({"name": "notes.txt", "mimeType": "text/plain", "buffer": b"no image"})
    trouble = page.get_by_role("alert")
    trouble.wait_for()
    assert "notes.txt is not a readable image" in trouble.inner_text()
    cleared(page)
    whole = image_of(np.random.default_rng(0).integers(0, 255, (60, 60), dtype=np.uint8), "half.png")
    page.locator("#file").set_input_files(whole | {"buffer": whole["buffer"][:2000]})  # which a browser shows in part
    until(page, "document.getElementById('trouble').textContent.includes('half.png is not a readable image')")
    cleared(page)
    page.locator("#file").set_input_files({"name": "huge.png", "mimeType": "image/png", "buffer": bytes(2_000_000)})
    until(page, "document.getElementById('trouble').textContent.includes('huge.png is larger than 1 MB')")
    cleared(page)
    page.locator("#file").set_input_files(image_of(inputs[0, 0]))
    answered(page)
    assert not trouble.is_visible()
    until(page, "!document.getElementById('preview').hidden")
    assert page.locator("#seen").inner_text() == "Resized to 8 × 8 pixels, in grey, for the model."


def cleared(page: "Page") -> None:
    """Nothing is left of an image that has no answer, nor of the one before it, a while later, too."""
    page.wait_for_timeout(100)
    for name in ("#stage", "#preview", "#seen"):
        assert not page.locator(name).is_visible()


def test_a_slow_line_and_a_change_of_mind(visit: Any, client: httpx.Client, inputs: torch.Tensor) -> None:
    page = visit(client)
    answered(page)
    held: list[Route] = []
    page.route("**/v1/predict", lambda route: held.append(route))
    with page.expect_request("**/v1/predict"):  # it leaves after the page has said so
        page.locator("#file").set_input_files(image_of(inputs[0, 0], "slow.png"))
    until(page, "document.getElementById('status').textContent.startsWith('Asking')")
    assert page.locator(".thinking").get_attribute("aria-busy") == "true"
    page.unroute("**/v1/predict")
    page.route("**/v1/predict", lambda route: (time.sleep(0.5), route.continue_()))  # type: ignore[func-returns-value]
    page.locator("#samples button").nth(1).click()
    until(page, "document.querySelector('.thinking').getAttribute('aria-busy') === 'false'")
    answered(page)
    assert page.locator("#samples button").nth(1).get_attribute("aria-pressed") == "true"
    assert len(held) == 1


def test_a_stopped_server_shows_an_error(visit: Any, client: httpx.Client) -> None:
    page = visit(client)
    answered(page)
    page.route("**/v1/predict", lambda route: route.abort())
    page.locator("#samples button").first.click()
    page.get_by_role("alert").wait_for()
    assert "cannot be reached" in page.get_by_role("alert").inner_text()


def test_the_keyboard_is_enough(visit: Any, client: httpx.Client, inputs: torch.Tensor) -> None:
    page = visit(client)
    answered(page)
    page.on("filechooser", lambda chooser: chooser.set_files(image_of(inputs[1, 0])))
    order = []
    for _ in range(40):
        page.keyboard.press("Tab")
        order.append(
            page.evaluate(
                "document.activeElement.id || document.activeElement.className || document.activeElement.tagName"
            )
        )
        if order[-1] == "step":
            break
    assert order[0] == "file"
    assert order[-5:] == ["BUTTON", "end", "end", "play", "step"]
    before = int(page.locator("#step").input_value())
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert page.locator("#step").input_value() == "1" != before
    assert "step 1 of 4: " in (page.locator("#step").get_attribute("aria-valuetext") or "")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Space")
    assert page.locator("#play").inner_text() == "Stop"
    page.keyboard.press("Space")
    assert page.locator("#play").inner_text() == "Play"
    page.locator("#samples button").nth(2).focus()
    page.keyboard.press("Enter")
    until(page, "document.querySelectorAll('#samples button')[2].getAttribute('aria-pressed') === 'true'")
    page.locator("#file").focus()
    page.keyboard.press("Space")
    until(page, "document.getElementById('preview').alt.includes('mine.png')")


FIRST_LOOK = """() => new Promise(told => {
    const seen = [], find = id => document.getElementById(id);
    const note = () => {
        const said = [...document.querySelectorAll('.end .said')];
        seen.push({
            at: performance.now(), word: find('play-word').textContent, step: Number(find('step').value),
            status: find('status').textContent,
            boxes: said.filter(e => getComputedStyle(e).visibility === 'visible' && e.textContent).length,
        });
        if (seen.at(-1).word === 'Play') { watch.disconnect(); told(seen); }
    };
    const watch = new MutationObserver(note);
    find('samples').querySelectorAll('button')[1].click();
    const opened = new MutationObserver(() => {
        opened.disconnect();
        note();
        watch.observe(find('step-word'), {childList: true});
    });
    opened.observe(find('ends'), {childList: true});
})"""
"""What is seen of a sample from the moment the answer is there until nothing moves any more."""


def test_it_answers_at_once_and_moves_until_it_stops(visit: Any, client: httpx.Client) -> None:
    """Step by step from the even belief to the halt, beside the answer; from there, if asked, to the end."""
    page = visit(client, still=False)
    answered(page)
    until(page, "document.getElementById('play-word').textContent === 'Play'")
    seen = page.evaluate(FIRST_LOOK)
    halt = seen[-1]["step"]
    assert [look["step"] for look in seen] == list(range(halt + 1))
    assert {look["word"] for look in seen[:-1]} == {"Skip"}
    assert {look["boxes"] for look in seen} == {2}
    assert len({look["status"] for look in seen}) == 1
    assert seen[0]["status"].startswith("It answers ")
    assert f"after {halt} step" in page.locator(".end").first.inner_text()
    page.locator("#play").click()
    until(page, "document.getElementById('step').value == 4")
    assert page.locator("#play").inner_text() == "Play"


def test_a_model_without_a_threshold_always_takes_every_step(visit: Any, digits: Classifier) -> None:
    method = replace(digits.method, horizon=3, halt_threshold=-1e9)  # type: ignore[call-arg]
    with serving(replace(digits, method=method)) as client:
        page = visit(client)
        assert "after all 3 steps" in answered(page)
        caption = page.locator("#caption").inner_text()
        assert "It always takes every step." in caption
        assert "falls below" not in caption
        assert page.locator("polygon.above, polygon.below").count() == 0


def test_motion_is_short_and_can_be_skipped(visit: Any, digits: Classifier) -> None:
    """However many steps there are."""
    method = replace(digits.method, horizon=40, halt_threshold=-1e9)  # type: ignore[call-arg]
    with serving(replace(digits, method=method)) as client:
        page = visit(client, still=False)
        answered(page)
        until(page, "document.getElementById('play-word').textContent === 'Play'")
        seen = page.evaluate(FIRST_LOOK)
        assert seen[-1]["step"] == 40
        assert seen[-1]["at"] - seen[0]["at"] < 5000  # 1.5 seconds, on a machine that is not busy
        page.locator("#samples button").nth(2).click()
        until(page, "document.getElementById('play-word').textContent === 'Skip'")
        page.locator("#play").click()
        assert page.locator("#step").input_value() == "40"
        assert page.locator("#play").inner_text() == "Play"


def test_reduced_motion_is_respected(visit: Any, client: httpx.Client) -> None:
    page = visit(client)
    page.locator("#stage").wait_for()
    assert page.locator("#play").inner_text() == "Play"
    assert page.locator(".fill").first.evaluate("bar => getComputedStyle(bar).transitionDuration") == "0s"


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_hangs_over_the_edge(visit: Any, client: httpx.Client, width: int) -> None:
    for path in ("/", "/docs"):
        page = visit(client, path, viewport={"width": width, "height": 844})
        answered(page) if path == "/" else page.locator("main section").nth(3).wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(TOO_WIDE) == []


def test_dark_pages_are_dark(visit: Any, client: httpx.Client) -> None:
    found = {}
    for scheme in ("light", "dark"):
        page = visit(client, color_scheme=scheme)
        answered(page)
        colours = page.evaluate(
            "[...document.querySelectorAll('body, .status, .end .said, .bars .name')].map(e => getComputedStyle(e))"
            ".map(style => [style.color, style.backgroundColor])"
        )
        paper = brightness(colours[0][1])
        found[scheme] = (paper, [brightness(ink) for ink, _ in colours])
    assert found["light"][0] > 240 > 60 > max(found["light"][1])
    assert found["dark"][0] < 40 < 180 < min(found["dark"][1])


def brightness(colour: str) -> float:
    """Of `rgb(253, 253, 252)`."""
    return sum(int(part) for part in colour.strip("rgb()").split(",")[:3]) / 3


def test_an_image_can_be_dropped_and_pasted(visit: Any, client: httpx.Client, inputs: torch.Tensor) -> None:
    page = visit(client)
    answered(page)
    content = list(image_of(inputs[2, 0])["buffer"])
    give = """([kind, name, bytes]) => {
        const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(bytes)], name, {type: 'image/png'}));
        document.dispatchEvent(kind === 'drop'
            ? new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true})
            : new ClipboardEvent('paste', {clipboardData: data, bubbles: true}));
    }"""
    for kind in ("drop", "paste"):
        page.evaluate(give, [kind, f"{kind}ped.png", content])
        until(page, f"document.getElementById('preview').alt.includes('{kind}ped.png')")
        answered(page)


def test_numbers_are_filled_in(visit: Any, numbers_client: httpx.Client, features: Classifier) -> None:
    page = visit(numbers_client)
    answered(page)
    fields = page.locator("#form input")
    assert fields.count() == 4
    row = [0.5, -1.25, 2.0, 0.75]
    for place, value in enumerate(row):
        fields.nth(place).fill(str(value))
    fields.last.press("Enter")
    path = features.refine(torch.tensor([row]))
    share = f"{100 * path.final[0].exp().max():.1f} % sure"
    until(page, f"document.getElementById('status').textContent.includes('{share}')")
    fields.nth(2).fill("many")
    page.locator("#form button").click()
    page.get_by_role("alert").wait_for()
    assert "Feature 3 is not a number" in page.get_by_role("alert").inner_text()


def test_a_table_has_a_field_for_each_column(visit: Any, table_client: httpx.Client) -> None:
    page = visit(table_client)
    answered(page)
    row = {"weight": 130, "colour": "red"}
    page.get_by_label("weight").fill("130")
    page.get_by_label("colour").select_option("red")
    page.get_by_role("button", name="Ask").click()
    [said] = table_client.post("/v1/predict", json={"rows": row}).json()["predictions"]
    share = f"{100 * said['confidence']:.1f} % sure"
    until(page, f"document.getElementById('status').textContent.includes('{said['answer']}, {share}')")


def test_one_step_needs_no_slider(visit: Any, tmp_path: Any) -> None:
    with serving(ricnet.train("digits", method="supervised", epochs=1, out=tmp_path, device="cpu")) as client:
        page = visit(client)
        assert answered(page).endswith("in one step.")
        assert not page.locator("#controls").is_visible()
        assert page.locator("#bars").is_visible()


def test_a_budget_is_set_by_a_slider(visit: Any, exits_run: Path, client: httpx.Client) -> None:
    """The same image is asked again, and leaves by the threshold of the budget."""
    model = ricnet.load(exits_run)
    image = image_of(np.load(exits_run / "examples.npz")["x"][3, 0])
    with serving(model) as exits:
        page = visit(exits)
        answered(page)
        with page.expect_response("**/v1/predict"):
            page.locator("#file").set_input_files(image)
        own, words = answered(page), page.locator("#budget output")
        assert words.inner_text().endswith("the server's setting")
        for place in (0, len(model.budgets) // 2, len(model.budgets) - 1):
            point = model.budgets[place]
            with page.expect_response("**/v1/predict"):
                page.locator("#share").fill(str(place))
            answered(page)
            [expected] = exits.post(
                "/v1/predict", files={"images": image["buffer"]}, data={"budget": point.mean_cost}
            ).json()["predictions"]
            steps, left = expected["steps"], page.locator(".end .cost").first.inner_text()
            assert re.match(rf"after {steps} steps?, {100 * expected['cost']:.0f} % of compute", left)
            share, right = f"{round(100 * point.mean_cost)} % of compute", f"accuracy {100 * point.accuracy:.1f} %"
            assert words.inner_text() == f"{share} on average, {right} on validation data"
            if steps < 3:
                assert f"falls below {float(f'{point.halt_threshold:.2g}'):g};" in page.locator("#caption").inner_text()
        with page.expect_response("**/v1/predict"):
            page.get_by_role("button", name="Undo").click()
        assert answered(page) == own
    assert not visit(client).locator("#budget").is_visible()


def test_of_two_classes_there_are_no_others(visit: Any, two_classes: Classifier) -> None:
    with serving(two_classes) as other:
        page = visit(other)
        answered(page)
        caption = page.locator("#caption").inner_text()
    assert "its strongest rival" in caption
    assert "all others" not in caption
