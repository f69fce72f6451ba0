"""Reports in a real browser: nothing is fetched, nothing overflows, everything can be read, and it prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import browser
from report_folders import make_run, make_study

from ttc_esopt.report import write_report, write_study_report

pytestmark = pytest.mark.browser
LEAST_TEXT = 8  # pixels, as the browser measures the height of a line of text

FIGURES = """() => [...document.querySelectorAll('figure .drawing svg')].map(svg => {
  const box = svg.getBoundingClientRect(), texts = [...svg.querySelectorAll('text')];
  return {width: box.width, height: box.height,
          text: Math.min(...texts.map(text => text.getBoundingClientRect().height)), texts: texts.length,
          outside: texts.filter(text => { const one = text.getBoundingClientRect();
            return one.left < box.left - 1 || one.right > box.right + 1 || one.bottom > box.bottom + 1; }).length};
})"""
# what sticks out of the page and does not scroll in a box of its own
WIDE = """() => [...document.querySelectorAll('main *')].filter(one => !one.closest('.scroll, pre, svg') &&
  one.getBoundingClientRect().right > innerWidth + 1).map(one => one.outerHTML.slice(0, 80))"""


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=browser(), args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("pages")
    first, second = make_run(root / "demo"), make_run(root / "other", seed=2, best=6.3, evil=True)
    return {
        "run": write_report([first], root / "run.html"),
        "two": write_report([first, second], root / "two.html"),
        "study": write_study_report(make_study(root / "study", seeds=2), root / "study.html"),
    }


def opened(chromium, path: Path, width: int, scheme: str):
    """The page with all details open, and what the browser complained of or asked for."""
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: request.url.startswith(("file:", "data:")) or complaints.append(request.url))
    page.goto(path.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    return page, complaints


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
@pytest.mark.parametrize("name", ["run", "two", "study"])
def test_a_page_fits_and_can_be_read(chromium, pages, name, width, scheme):
    page, complaints = opened(chromium, pages[name], width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(WIDE) == []
    figures = page.evaluate(FIGURES)
    assert len(figures) >= 8
    for figure in figures:
        assert figure["width"] > 200 and figure["height"] > 80 and figure["texts"] > 4
        assert figure["text"] >= LEAST_TEXT and figure["outside"] == 0, figure
    assert complaints == []
    page.context.close()


def test_ink_and_paper_change_in_the_dark_and_back_in_print(chromium, pages):
    page, _ = opened(chromium, pages["run"], 1280, "dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    added = "getComputedStyle(document.querySelector('.diff .add')).color"
    dark, dark_ink = page.evaluate(paper), page.evaluate(added)
    page.emulate_media(media="print", color_scheme="dark")
    assert dark != "rgb(255, 255, 255)" and page.evaluate(paper) == "rgb(255, 255, 255)"
    assert page.evaluate(added) != dark_ink
    page.context.close()


@pytest.mark.parametrize("name", ["run", "two", "study"])
def test_a_page_prints_with_closed_details_shown(chromium, pages, tmp_path, name):
    page = chromium.new_page(viewport={"width": 690, "height": 975})  # A4 less its margins
    page.goto(pages[name].as_uri())
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= 690
    assert page.evaluate("document.querySelector('details > :nth-child(2)').getBoundingClientRect().height") > 20
    page.pdf(path=str(tmp_path / "page.pdf"), format="A4", print_background=True)
    assert (tmp_path / "page.pdf").stat().st_size > 20_000
    page.close()
