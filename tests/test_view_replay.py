"""The replay of a search: after each iteration the page shows what the search knew then."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from data_generation.config import GenerateConfig
from data_generation.expand import Searcher, make_searcher
from data_generation.growth import SearchTree, finished, root_only
from data_generation.search import run_wave, verdict
from steprag.agent.environment import Environment
from steprag.agent.profiles import load_profile
from steprag.config.load import load_config
from steprag.tree import Tree
from steprag.types import Question
from tests.browser import browser, page_in
from tests.fakes import QUESTION, BelievingPolicy, DictRetriever
from tests.viewing import SHIPPED, made_run, viewer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["browser"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
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
    moments = list(asyncio.run(_iterated(growth, searcher)))
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
        page.goto(link)
        page.wait_for_selector(".node-pane .raw")
        yield page


MOMENTS = """async ([run, line]) => {
  const { growthOf, momentAt } = await import("/page/growth.js");
  const tree = await (await fetch(`/api/tree?run=${run}&line=${line}`)).json();
  const growth = growthOf(tree);
  const at = (id) => momentAt(growth, tree.nodes, id);
  return {
    ...growth, said: tree.iterations, visits: tree.nodes.visits, value: tree.nodes.value,
    ends: growth.iterations.map((one) => ({ ...one, ...at(one.last) })), last: at(tree.nodes.visits.length - 1),
  };
}"""


@pytest.mark.parametrize("name", SEARCHES)
def test_each_iteration_shows_what_the_search_knew(page: Page, searches: Any, name: str) -> None:
    tree, moments = searches[name]
    told = page.evaluate(MOMENTS, ["run", 1 + list(searches).index(name)])
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
        told = page.evaluate(MOMENTS, ["trees", line])
        assert told["whole"]
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
