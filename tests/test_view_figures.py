"""The viewer's quality figures, and the ways between a tree and its pairs, in a real Chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from steprag.cli import main
from tests.browser import browser, page_in
from tests.viewing import at, link_to, usual_runs

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

expect = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install -e '.[dev]'").expect
__all__ = ["browser"]
LONG = 60_000
"""Milliseconds that the first figures of a process may take on a busy machine: the libraries come with them."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Shipped trees, their pairs, and two runs of inference."""
    return usual_runs(tmp_path_factory.mktemp("runs"), 3, ["sol", "lek", "the old lek", "sol"])


@pytest.fixture(scope="module")
def link(runs: list[Path]) -> Iterator[str]:
    yield from link_to(*runs)


def cells(page: Page, table: str, row: str) -> list[str]:
    """The cells of a row of the table with that label."""
    rows = page.locator(f"[aria-label='{table}'] tr")
    return rows.filter(has=page.get_by_role("rowheader", name=row, exact=True)).locator("td").all_inner_texts()


def hovered(page: Page, node: int | None) -> bool:
    """Whether the page comes to show that node's card; it allows no eval, so we ask it again and again."""
    asked = "document.querySelector('canvas').stage.scene.hovered"
    for _ in range(100):
        if page.evaluate(asked) == node and page.evaluate("document.querySelector('canvas').stage.frame") == 0:
            return True
        page.wait_for_timeout(100)
    return False


def test_every_figure_of_two_runs(browser: Browser, link: str, runs: list[Path], tmp_path: Path) -> None:
    assert main(["compare", str(runs[2]), str(runs[3]), "--out", str(tmp_path)]) == 0
    told = json.loads((tmp_path / "compare.json").read_text())["quality"]["after"]
    with page_in(browser) as page:
        at(page, link, "#/after/quality")
        page.wait_for_selector("text=ROUGE-L", timeout=LONG)
        assert len(cells(page, "Figures of the answers", "ROUGE-L")) == 3  # the run, n, what it means
        page.select_option("select >> nth=1", "before")
        expect(page.locator("thead >> nth=0")).to_contain_text("after less before")
        for name, figure in told["figures"].items():
            before, after, gain, n, means = cells(page, "Figures of the answers", figure["label"])
            scale = 100 if figure["unit"] == "share" else 1
            assert float(after.split()[0]) == pytest.approx(scale * figure["value"], abs=0.051), name
            assert float(gain.split()[0]) == pytest.approx(scale * told["gains"][name]["value"], abs=0.051), name
            assert before
            assert str(figure["n"]) in n
            assert means == figure["definition"]
        assert page.locator(".chart").count() == 5  # over time, and four lengths
        assert page.evaluate("document.querySelectorAll('*').length") < 500


def test_an_error_leads_to_its_predictions(browser: Browser, link: str) -> None:
    with page_in(browser) as page:
        at(page, link, "#/after/quality//before")
        page.wait_for_selector("[aria-label=Errors] tr", timeout=LONG)
        assert cells(page, "Errors", "more words")[:2] == ["0 0.0 %", "1 25.0 %"]
        page.focus("text=more words")
        page.keyboard.press("Enter")
        expect(page.locator(".shown")).to_have_text("1 of 4 predictions")
        expect(page.locator("#predictions .row")).to_contain_text("the old lek")
        page.click("text=Every figure, with n, interval and definition")
        page.wait_for_selector("[aria-label=Errors] tr", timeout=LONG)


def test_a_search_tells_how_its_completions_follow_the_grammar(browser: Browser, link: str) -> None:
    with page_in(browser) as page:
        at(page, link, "#/trees/quality")
        page.wait_for_selector(".figures tbody tr")
        rows = page.locator("[aria-label='Completions of trees.jsonl by action'] tbody tr").all_inner_texts()
        assert {row.split()[0] for row in rows} >= {"query", "evidence", "answer"}
        expect(page.locator("main")).to_contain_text("completions in 3 trees (95 % interval")


def test_from_a_step_to_its_pair_and_back(browser: Browser, link: str) -> None:
    with page_in(browser) as page:
        at(page, link, "#/pairs/pairs/0.1")
        page.wait_for_selector(".two-sides ins")
        place = page.url
        page.click("text=/node \\d+ in its tree/ >> nth=0")
        page.wait_for_selector(".siblings >> text=in pairs")
        page.focus("text=in pairs >> nth=0")
        page.keyboard.press("Enter")
        page.wait_for_selector(".two-sides ins")
        assert page.url == place


def test_the_words_of_a_node_stand_beside_it(browser: Browser, link: str) -> None:
    with page_in(browser) as page:
        at(page, link, "#/trees/trees/1")
        page.wait_for_selector(".node-pane .raw")
        x, y = page.evaluate("""() => {
          const { view, scene, canvas } = document.querySelector("canvas").stage;
          const box = canvas.getBoundingClientRect();
          return [box.x + scene.shape.x[1] * view.scale + view.x, box.y + scene.shape.y[1] * view.scale + view.y];
        }""")
        before = page.locator("canvas").screenshot()
        page.mouse.move(x, y)
        assert hovered(page, 1)
        assert page.locator("canvas").screenshot() != before
        page.mouse.move(5, 5)
        assert hovered(page, None)


def test_the_file_to_mail_has_the_figures_and_the_ways(browser: Browser, runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "all.html"
    assert main(["view", *map(str, runs), "--out", str(out)]) == 0
    with page_in(browser) as page:
        page.goto(f"{out.as_uri()}#/after/quality//before")
        page.wait_for_selector("text=ROUGE-L", timeout=LONG)
        assert cells(page, "Figures of the answers", "F1")[2] == "-8.3 -75.0 to +50.0"
        page.goto(f"{out.as_uri()}#/before/quality//after")  # the file holds one way round: the page turns it
        expect(page.locator("thead >> nth=0")).to_contain_text("before less after")
        assert cells(page, "Figures of the answers", "F1")[2] == "+8.3 -50.0 to +75.0"
        page.goto(f"{out.as_uri()}#/pairs/pairs/0.1")
        page.click("text=/node \\d+ in its tree/ >> nth=0")
        page.click("text=in pairs >> nth=0")
        page.wait_for_selector(".two-sides ins")
        page.goto(f"{out.as_uri()}#/trees/trees/1/3")
        page.click("text=Rewards under every rule")
        page.wait_for_selector(".every-rule tbody tr")
        page.press(".replay input", "Home")
        expect(page.locator(".replay-told")).to_contain_text("The question alone")
