"""The viewer's page in a real Chromium: by pointer and keyboard, on big trees, growing folders and hostile files; its
quality figures, the ways between a tree and its pairs, and the replay of a search, which shows what it knew then.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from apps.commands import main
from data_generation.config import GenerateConfig
from data_generation.expand import Searcher, make_searcher
from data_generation.growth import SearchTree, finished, root_only
from data_generation.search import run_wave
from data_generation.stopping import verdict
from preference.view_rewards import rule_names
from steprag.agent.environment import Environment
from steprag.agent.profiles import load_profile
from steprag.config.load import load_config
from steprag.tree import Tree
from steprag.types import Question
from tests.browser import browser, page_in, page_script, violations
from tests.fakes import QUESTION, BelievingPolicy, DictRetriever
from tests.viewing import (
    MARKUP,
    SHIPPED,
    answered_run,
    append_trees,
    at,
    made_run,
    made_tree,
    shipped_lines,
    usual_runs,
    viewer,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

expect = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install -e '.[dev]'").expect
__all__ = ["browser"]
pytestmark = [pytest.mark.slow, pytest.mark.landing, pytest.mark.timeout(300)]
MOST = 500
"""Elements that the page may have, whatever it shows."""
LONG = 60_000
"""Milliseconds that the first figures of a process may take on a busy machine: the libraries come with them."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The shipped trees, pairs of them, two runs of inference and the log of a training."""
    folder = tmp_path_factory.mktemp("runs")
    rows = [json.dumps({"step": step, "loss": 2 / (1 + step), "rewards/margins": step / 50}) for step in range(50)]
    episodes = [
        {"step": 9, "question": "q1", "finish": "answer", "steps": ["thought"], "prediction": said, "reward": reward,
         "rewards": {"f1": reward, "format": 1.0}, "advantage": reward - 0.5}
        for said, reward in (("lek", 1.0), ("sol", 0.0))
    ]  # fmt: skip
    (folder / "train").mkdir()
    (folder / "train/metrics.jsonl").write_text("\n".join(rows), encoding="utf-8")
    (folder / "train/episodes.jsonl").write_text("\n".join(map(json.dumps, episodes)), encoding="utf-8")
    return [*usual_runs(folder), folder / "train"]


@pytest.fixture(scope="module")
def link(runs: list[Path]) -> Iterator[str]:
    with viewer(*runs) as link:
        yield link


def elements(page: Page) -> int:
    return page.evaluate("document.querySelectorAll('*').length")


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


def chosen_node(page: Page) -> str:
    page.wait_for_selector(".node-pane .raw")
    return page.inner_text(".node-name")


def test_a_tree_by_pointer_searched_filtered_coloured_and_replayed(browser: Browser, link: str) -> None:
    with page_in(browser) as page:
        at(page, link, "#/trees/trees")
        page.wait_for_selector(".tree-head h2")
        assert page.inner_text(".tree-head h2").startswith("How many counties")
        assert page.inner_text(".shown") == "100 trees"
        page.fill(".filters input", "norwegian")
        expect(page.locator(".shown")).to_have_text("1 of 100 trees")
        page.click("#trees .row")
        expect(page.locator(".tree-head h2")).to_contain_text("Norwegian")
        assert "/trees/2" in page.url
        page.click("#steps .row:nth-child(3)")
        expect(page.locator(".node-name")).to_have_text("node 4")
        assert page.url.endswith("/2/4")
        place, before = page.evaluate(page_script("place_of"), 2), page.locator("canvas").screenshot()
        page.mouse.move(*place)
        assert hovered(page, 2)
        assert page.locator("canvas").screenshot() != before, "the words of a node stand beside it"
        page.mouse.move(5, 5)
        assert hovered(page, None)
        page.mouse.click(*place)
        expect(page.locator(".node-name")).to_have_text("node 2")
        assert page.locator("#steps .row[aria-selected=true]").count() == 1
        assert elements(page) < MOST
        at(page, link, "#/trees/trees/1")
        page.fill(".tools input", "los angeles")
        page.click("text=/Next of \\d+ steps/")
        expect(page.locator(".node-pane")).to_contain_text("Los Angeles")
        page.fill(".tools input", "")
        page.select_option(".tools select >> nth=0", "answer")
        expect(page.locator("#steps .row >> nth=0")).to_have_attribute("aria-setsize", "12")
        page.select_option(".tools select >> nth=0", "")
        page.select_option(".tools select >> nth=1", "gain")
        page.click("#steps .row:nth-child(2)")
        expect(page.locator(".node-pane .facts")).to_contain_text("reward")
        page.click("text=Rewards under every rule")
        page.wait_for_selector(".every-rule tbody tr")
        assert page.locator(".every-rule tbody tr").count() == len(rule_names())
        page.locator(".replay input").evaluate("(e) => { e.value = 4; e.dispatchEvent(new Event('input')); }")
        assert page.inner_text(".replay-words") == "5 of 41"
        assert page.locator("#steps .row").count() == 5
        page.click("text=Replay")
        expect(page.locator(".replay-words")).to_have_text("41 of 41", timeout=20000)


def test_a_tree_by_keyboard_alone(browser: Browser, link: str) -> None:
    """Behind the form that asks for the token."""
    with page_in(browser) as page:
        page.goto(link.split("#")[0] + "#/trees/trees/1")
        for typed in ("wrong", link):
            page.fill("#token", typed)
            page.keyboard.press("Enter")
            page.wait_for_selector("text=this is not the service's token" if typed == "wrong" else "nav a")
        page.goto(link.split("#")[0] + "#/trees/trees/1")
        page.focus("#steps")
        for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
            page.keyboard.press(key)
        below = chosen_node(page)
        page.keyboard.press("ArrowLeft")
        expect(page.locator(".node-name")).not_to_have_text(below)
        page.keyboard.press("End")
        active = page.get_attribute("#steps", "aria-activedescendant")
        assert [page.get_attribute(f"#{active}", f"aria-{name}") for name in ("posinset", "setsize")] == ["41", "41"]
        page.keyboard.press("Home")
        expect(page.locator(".node-name")).to_have_text("node 0")
        page.focus("#trees")
        page.keyboard.press("ArrowDown")
        expect(page.locator(".tree-head h2")).to_contain_text("Norwegian")


def test_a_pair_its_nodes_its_rules_and_its_mark(browser: Browser, link: str, runs: list[Path]) -> None:
    with page_in(browser) as page:
        at(page, link, "#/pairs/pairs")
        page.wait_for_selector(".two-sides ins")
        assert page.locator(".two-sides del").count() > 0
        all_pairs = page.inner_text(".shown")
        page.select_option(".filter-row select >> nth=0", "evidence")
        expect(page.locator(".shown")).not_to_have_text(all_pairs)
        page.select_option(".filter-row select >> nth=2", "bridge")
        page.click("#pairs .row")
        page.click("text=Every two siblings of this tree")
        page.wait_for_selector(".siblings .here")
        page.click("text=Mark as wrong")
        page.wait_for_selector("text=Marked as wrong")
        assert len((runs[1] / "wrong.jsonl").read_text(encoding="utf-8").splitlines()) == 1
        page.click("text=Marked as wrong; press to take back")
        page.wait_for_selector("text=Mark as wrong")
        place = page.url
        page.click("text=/node \\d+ in its tree/ >> nth=0")
        page.wait_for_selector(".tree-view .node-pane")
        assert re.search(r"#/trees/trees/\d+/\d+$", page.url)
        page.focus(".siblings >> text=in pairs >> nth=0")
        page.keyboard.press("Enter")
        page.wait_for_selector(".two-sides ins")
        assert page.url == place


def test_two_runs_on_the_same_questions_and_curves_of_a_training(browser: Browser, link: str) -> None:
    with page_in(browser) as page:
        at(page, link, "#/after/predictions")
        page.select_option(".filters select >> nth=0", "before")
        expect(page.locator(".filter-row select >> nth=0")).to_contain_text("(1)")
        for outcome, question in (
            ("won", "number 2"),
            ("lost", "number 0"),
            ("both", "number 1"),
            ("none", "number 3"),
        ):
            page.select_option(".filter-row select >> nth=0", outcome)
            expect(page.locator("#predictions .row").first).to_contain_text(question)
        page.click("#predictions .row >> nth=0")
        page.wait_for_selector(".step-grid.two")
        assert page.locator(".step-grid .ending").count() == 2
        page.wait_for_selector(".figures", timeout=LONG)
        assert page.locator(".figures tbody tr").count() == 2
        at(page, link, "#/train/training")
        page.wait_for_selector(".chart canvas")
        assert page.locator(".chart").count() == 2
        assert page.inner_text(".chart figcaption >> nth=0").startswith("loss")
        assert page.locator(".figures tbody tr").count() == 2
        page.click(".figures button >> nth=0")
        page.wait_for_selector(".episode .raw")


def test_runs_at_a_glance(browser: Browser, tmp_path: Path) -> None:
    """A table to sort; what is looked for; a run that goes on, one that failed; each opens with what one came for."""
    going, failed = made_run(tmp_path / "all/going", made_tree(10)), tmp_path / "all/failed"
    failed.mkdir()
    told = {"stage": "infer", "status": "failed", "error": "no model answers", "identity": {}, "config": {}}
    (failed / "manifest.json").write_text(json.dumps(told))
    (failed / "metrics.jsonl").touch()
    (failed / "failures.jsonl").write_text(json.dumps({"id": "q7", "reason": "PolicyError", "detail": "cut off"}))
    after = answered_run(tmp_path / "all/after", ["sol", "lek"])
    (after / "metrics.json").write_text(json.dumps({"em": 0.5, "em_interval": [0.1, 0.9]}))
    manifest = {**json.loads((going / "manifest.json").read_text()), "status": "running", "ended": None}
    (going / "manifest.json").write_text(json.dumps(manifest))
    (going / "progress.json").write_text(json.dumps({"done": 3, "total": 12, "calls": 40, "usd": 0.5,
                                                     "seconds": 60, "left_seconds": 180}))  # fmt: skip
    first = ".runs-table tbody tr >> nth=0"
    with viewer(tmp_path / "all") as link, page_in(browser) as page:
        at(page, link, "#/")
        assert page.locator(".runs-table tbody tr").count() == 3
        page.click("text=EM, %")
        expect(page.locator(first)).to_contain_text("50.0 10.0 to 90.0")
        page.click("text=cost")
        expect(page.locator(first)).to_contain_text("running, 25.0 %")
        expect(page.locator(first)).to_contain_text("$0.50")
        page.fill("input[type=search]", "no model")
        page.click(first)
        page.click("text=Questions that failed")
        page.wait_for_selector("text=q7: PolicyError: cut off")
        assert "This run failed. no model answers" in page.inner_text(".banner")
        page.select_option(".run-choice select", "going")
        page.wait_for_selector(".tree-view")
        assert "3 of 12 questions · 40 calls · $0.50" in page.inner_text(".banner")
        page.select_option(".run-choice select", "after")
        page.wait_for_selector(".prediction-view")
        page.fill(".filters input", "so the next sol")
        expect(page.locator(".filters")).to_contain_text("1 by their texts")
        expect(page.locator("#predictions .row")).to_have_count(1)


PLACES = (
    "#/",
    "#/trees/trees/1/2",
    "#/pairs/pairs/0.1",
    "#/after/predictions/1/before",
    "#/after/quality//before",
    "#/train/training",
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("place", PLACES)
def test_nothing_stands_in_anyones_way(browser: Browser, link: str, place: str, scheme: str) -> None:
    """Axe finds no violation, wide and at 320 pixels, where nothing is wider than the screen either."""
    with page_in(browser, color_scheme=scheme) as page:
        at(page, link, place)
        page.wait_for_selector(".node-pane .raw, .two-sides, .step-grid .played, .chart canvas, .runs-table a")
        page.wait_for_selector("text=Computing the figures", state="detached", timeout=60_000)
        page.wait_for_load_state("networkidle")
        assert violations(page) == ""
        page.set_viewport_size({"width": 320, "height": 700})
        assert violations(page) == ""
        assert page.evaluate("document.documentElement.scrollWidth") <= 320


@pytest.mark.parametrize("size", [1_000, 10_000])
def test_big_trees_stay_usable(browser: Browser, tmp_path: Path, size: int) -> None:
    run = made_run(tmp_path / "run", made_tree(size))
    with viewer(run) as link, page_in(browser) as page:
        at(page, link, "#/run/trees/1")
        page.wait_for_selector(".node-pane")
        assert elements(page) < MOST
        page.focus("#steps")
        page.keyboard.press("End")
        expect(page.locator(".node-name")).not_to_have_text("node 0")
        page.mouse.move(600, 500)
        page.mouse.wheel(0, -600)
        page.mouse.down()
        page.mouse.move(500, 400, steps=5)
        page.mouse.up()
        page.fill(".tools input", f"step {size - 1}")
        expect(page.locator("#steps .row")).to_have_count(1)
        assert elements(page) < MOST


def test_a_folder_that_grows_grows_on_the_page(browser: Browser, tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", made_tree(10, "made-0"))
    with viewer(answered_run(tmp_path / "answers", ["lek"]), run) as link, page_in(browser) as page:
        at(page, link, "")
        page.click(".runs-table a >> text=run")
        expect(page.locator(".shown")).to_have_text("1 tree")
        page.click("#steps .row:nth-child(3)")
        chosen = chosen_node(page)
        append_trees(run, made_tree(12, "made-1"), made_tree(13, "made-2"))
        expect(page.locator(".shown")).to_have_text("3 trees")
        assert chosen_node(page) == chosen  # what one looks at stays
        with (run / "trees.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(shipped_lines(1)[0][:200])
        page.wait_for_selector("text=The last line is not whole yet.")


def test_hostile_files_are_words(browser: Browser, tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", made_tree(12, words=MARKUP))
    with (run / "trees.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('{"broken": \n' + MARKUP + "\n")
    (run / "manifest.json").write_text(json.dumps({"stage": MARKUP, "status": MARKUP, "identity": {}, "config": {}}))
    bad = answered_run(tmp_path / "bad", [MARKUP, "lek"])
    with viewer(run, bad) as link, page_in(browser) as page:
        at(page, link, "#/run/trees/1/1")
        page.wait_for_selector(".node-pane .raw")
        assert "<script>" in page.inner_text(".tree-head h2")
        page.click("text=2 lines cannot be read")
        assert "trees.jsonl:2: not JSON" in page.inner_text(".faults")
        page.click("text=Prompt, as the policy saw it")
        page.goto(link.split("#")[0] + "#/bad/predictions/1")
        page.wait_for_selector(".step-grid .played")
        assert page.title() == "StepRAG view"
        assert page.locator("main img, main script").count() == 0
        page.goto(link.split("#")[0] + "#/%ff/<script>/1/2")
        page.wait_for_selector("nav a")


def test_one_file_opens_from_the_disk(browser: Browser, tmp_path: Path, runs: list[Path]) -> None:
    out = tmp_path / "all.html"
    assert main(["view", *map(str, runs), "--trees", "3", "--out", str(out)]) == 0
    with page_in(browser) as page:
        page.goto(out.as_uri())
        page.click(".runs-table a >> text=trees")
        page.wait_for_selector(".node-pane .raw")
        assert page.inner_text(".shown") == "3 trees"
        page.click("#steps .row:nth-child(3)")
        page.wait_for_selector("text=Prompt, as the policy saw it")
        page.click("text=Rewards under every rule")
        page.wait_for_selector(".every-rule tbody tr")
        page.press(".replay input", "Home")
        expect(page.locator(".replay-told")).to_contain_text("The question alone")
        page.goto(f"{out.as_uri()}#/pairs/pairs/0.1")
        page.click("text=/node \\d+ in its tree/ >> nth=0")
        page.click("text=in pairs >> nth=0")
        page.wait_for_selector(".two-sides ins")
        page.goto(f"{out.as_uri()}#/after/predictions/1/before")
        page.wait_for_selector(".figures")
        page.goto(f"{out.as_uri()}#/train/training")
        page.wait_for_selector(".chart canvas")
        page.goto(f"{out.as_uri()}#/after/quality//before")
        page.wait_for_selector("text=ROUGE-L", timeout=LONG)
        gain = float(cells(page, "Figures of the answers", "F1")[2].split()[0])
        page.goto(f"{out.as_uri()}#/before/quality//after")  # the file holds one way round: the page turns it
        expect(page.locator("thead >> nth=0")).to_contain_text("before less after")
        assert float(cells(page, "Figures of the answers", "F1")[2].split()[0]) == -gain != 0


def test_rows_are_not_redrawn_for_every_reply_and_each_of_a_million_can_be_reached(browser: Browser, link: str) -> None:
    """The clock of the page stands still: the first reply is drawn and the last one. A million rows are taller
    together than a browser draws.
    """

    def answer(route: Route) -> None:
        start = int(route.request.url.rpartition("from=")[2])
        rows = [{"line": start + number + 1, "id": f"q{start + number}"} for number in range(10)]
        told = {"generation": 0, "name": "trees.jsonl", "rows": rows, "complete": start >= 490, "read": start + 10,
                "size": 500, "torn": False, "faults": [], "fault_count": 0}  # fmt: skip
        route.fulfill(json=told)

    with page_in(browser) as page:
        at(page, link, "#/trees/trees")
        page.evaluate(page_script("long_list"))
        page.focus("#long")
        for key, row in (("End", "999999"), ("ArrowUp", "999998"), ("PageUp", "999994"), ("Home", "0")):
            page.keyboard.press(key)
            chosen = page.locator("#long .row[aria-selected=true]")
            expect(chosen).to_have_text(row)
            expect(chosen).to_be_in_viewport()
        page.evaluate("document.getElementById('long').scrollTop = 1e9")
        expect(page.locator("#long .row").last).to_have_text("999999")
        expect(page.locator("#long .row").last).to_be_in_viewport()
        page.route("**/api/rows/**", answer)
        page.evaluate("performance.now = () => 1000")
        page.evaluate(page_script("rows_on_the_way"))
        expect(page.locator("#rows")).to_have_text("500")
        assert set(page.evaluate("drawn")) == {0, 10, 500}


def test_every_figure_of_two_runs_leads_to_its_predictions_and_a_search_tells_how_it_follows_the_grammar(
    browser: Browser, link: str, runs: list[Path], tmp_path: Path
) -> None:
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
        assert elements(page) < MOST
        at(page, link, "#/after/quality//before")
        page.wait_for_selector("[aria-label=Errors] tr", timeout=LONG)
        assert cells(page, "Errors", "more words")[:2] == ["0 0.0 %", "1 20.0 %"]
        page.focus("text=more words")
        page.keyboard.press("Enter")
        expect(page.locator(".shown")).to_have_text("1 of 5 predictions")
        expect(page.locator("#predictions .row")).to_contain_text("the old lek")
        page.click("text=Every figure, with n, interval and definition")
        page.wait_for_selector("[aria-label=Errors] tr", timeout=LONG)
        at(page, link, "#/trees/quality")
        page.wait_for_selector(".figures tbody tr")
        rows = page.locator("[aria-label='Completions of trees.jsonl by action'] tbody tr").all_inner_texts()
        assert {row.split()[0] for row in rows} >= {"query", "evidence", "answer"}
        expect(page.locator("main")).to_contain_text("completions in 100 trees (95 % interval")


Moment = tuple[int, list[int], list[float | None]]
"""How many nodes there were, their visits and their values."""
SEARCHES: dict[str, dict[str, Any]] = {
    "outcomes": {"search.children": 3},
    "in two requests": {"search.children": 4, "search.siblings": 2},
    "belief": {"search.children": 3, "search.score": True, "reward.name": "gain"},
    "not played on": {"search.play": False, "search.children": 3},
}


def grown(name: str, **keys: Any) -> tuple[Tree, list[Moment]]:
    """A search of one leaf at a time, and what it knew after each iteration."""
    fixed = {"search.rollouts": 12, "search.extra": 0, "search.wave": 1, "search.hopeless": None, "seed": 3}
    config = load_config(GenerateConfig, None, {**fixed, **keys})
    policy = BelievingPolicy()
    world = Environment(load_profile("transcript"), DictRetriever(), 3, config.episode.depth)
    searcher = make_searcher(world, policy, None, config, policy if config.search.score else None)
    growth = root_only(Question(name, QUESTION, ("lek", "Albanian lek")), world)
    with ThreadPoolExecutor(1) as apart:  # in this thread the browser's loop may be running
        moments = apart.submit(asyncio.run, _iterated(growth, searcher)).result()
    ended = verdict(growth, config.search, config.tree)
    assert ended is not None
    return finished(growth, ended), moments


async def _iterated(growth: SearchTree, searcher: Searcher) -> list[Moment]:
    moments = []
    while not verdict(growth, searcher.config.search, searcher.config.tree):
        await run_wave(growth, searcher)
        known = growth.nodes
        means = [node.total / node.visits if node.visits else None for node in known]
        moments.append((len(known), [node.visits for node in known], means))
    return moments


@pytest.fixture(scope="module")
def searches() -> dict[str, tuple[Tree, list[Moment]]]:
    return {name: grown(name, **keys) for name, keys in SEARCHES.items()}


@pytest.fixture(scope="module")
def page(searches: Any, browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    run = made_run(tmp_path_factory.mktemp("grown") / "run", *(tree for tree, _ in searches.values()))
    with viewer(run, SHIPPED) as link, page_in(browser) as page:
        at(page, link, "#/run")
        page.wait_for_selector(".node-pane .raw")
        yield page


@pytest.mark.parametrize("name", SEARCHES)
def test_each_iteration_shows_what_the_search_knew(page: Page, searches: Any, name: str) -> None:
    tree, moments = searches[name]
    told = page.evaluate(page_script("moments"), ["run", 1 + list(searches).index(name)])
    assert (told["whole"], told["late"]) == (True, 0)
    # an iteration whose completions were all known already made no node, so nothing of it is in the tree
    made = [(now, before) for before, now in zip([(1, [], []), *moments], moments, strict=False) if now[0] > before[0]]
    assert len(told["ends"]) == len(made)
    for end, ((count, visits, values), (before, _, _)) in zip(told["ends"], made, strict=True):
        assert (end["first"], end["last"]) == (before, count - 1)
        assert end["leaf"] == tree.nodes[before].parent
        assert end["visits"][:count] == visits
        assert end["values"][:count] == pytest.approx(values, abs=1e-9)
        assert not any(end["visits"][count:])


def test_the_last_moment_is_the_tree(page: Page) -> None:
    """Of the shipped trees too, which say nothing of how they grew."""
    for line in (1, 2, 50):
        told = page.evaluate(page_script("moments"), ["trees", line])
        assert told["whole"]
        assert told["scores"][-1] == told["best"]  # the best path ends right where a path does
        assert len(told["ends"]) <= told["said"]
        for moment in (told["last"], told["ends"][-1]):
            assert moment["visits"] == told["visits"]
            assert moment["values"] == told["value"]


def test_the_page_goes_through_a_search_by_keyboard(page: Page) -> None:
    page.goto(page.url.split("#")[0] + "#/run/trees/1")
    page.wait_for_selector(".replay")
    page.press(".replay input", "Home")
    assert "The question alone" in page.inner_text(".replay-told")
    assert page.locator("#steps .row").count() == 1
    page.press("[aria-label='An iteration on']", "Enter")
    told = page.inner_text(".replay-told")
    assert told.startswith("Iteration 1 of ")
    assert "expanded the question" in told
    assert "Backed up:" in told
    page.press(".replay input", "ArrowRight")
    assert "It is under way" in page.inner_text(".replay-told")
    page.press("[aria-label='An iteration back']", "Enter")
    assert page.inner_text(".replay-told") == told
    page.click(".replay-told button >> nth=-1")
    assert "then" in page.inner_text(".node-pane .facts")
    page.press(".replay input", "End")
    assert page.inner_text(".replay-told").startswith("Iteration 5 of 5 ")
    assert "then" not in page.inner_text(".node-pane .facts")
