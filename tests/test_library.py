"""`Index` and `Agent`: plain calls, also where a loop runs; what a notebook shows."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from apps.commands import main
from apps.library.background import run
from preference.build import read_trees
from steprag import Agent, Index, Passage, Question, read_records
from steprag.agent.citations import NOT_FOUND, headed
from steprag.errors import BudgetReached, ConfigError, PolicyError, RequestError, RetrieverError
from steprag.records.training_rows import Pair
from tests.browser import browser, page_in
from tests.fakes import (
    QUESTION,
    WORLD,
    Endpoint,
    answer,
    by_turn,
    chat_reply,
    evidence,
    query,
    serve,
)
from tests.viewing import MARKUP, shipped_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]
LEK = "Prices in Albania are quoted in the lek."


def seeks(prompt: str, draw: int) -> str:
    return query(f"currency of Albania {draw % 3}") if "<evidence>" not in prompt else answer(("lek", "sol")[draw % 2])


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serve(chat_reply(by_turn(seeks, evidence(LEK), answer("lek")))) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def index() -> Iterator[Index]:
    marked = Passage("m", MARKUP, f"Prices in Albania: {MARKUP}")
    with Index.build([*WORLD, marked, "Bare text.", {"title": "Rio", "text": "A town."}], encoder="none") as index:
        yield index


def agent_of(index: Index | Path, endpoint: Endpoint, **keys: Any) -> Agent:
    return Agent(index, "double", base_url=endpoint.url, engine="openai", retries=0, **keys)


def test_answers_trees_and_pairs_come_from_plain_calls_in_a_running_loop(index: Index, endpoint: Endpoint) -> None:
    async def notebook() -> None:
        assert index.search("capital of Peru", k=1)[0].title == "Lima"
        with agent_of(index, endpoint, search__rollouts=6, label__name="spre", pairs__errors=0) as agent:
            said = agent.ask(QUESTION)
            assert (said.lacks, [step.action for step in said.steps]) == ("question", ["query", "evidence", "answer"])
            assert str(said) == headed(said.answer or "", said.lacks) in repr(said)  # no passage on Tirana was read
            assert len(repr(said)) < 150
            assert f"<b>{NOT_FOUND}</b>" in said._repr_html_()
            assert said.sources == ()
            assert endpoint.requests[-1]["temperature"] == 0
            asked = len(endpoint.requests)
            assert agent.ask(QUESTION) == said
            assert len(endpoint.requests) == asked, "what was asked once costs nothing again"
            tree = agent.tree(QUESTION, "lek")
            assert endpoint.requests[-1]["temperature"] > 0
            assert agent.tree(Question(QUESTION, QUESTION, ("lek",))) == tree
            assert agent.pairs(tree) == agent.pairs([tree, tree])[: len(agent.pairs(tree))] != []
            shown = [*map(repr, (index, agent, tree, tree.nodes[1], agent.pairs(tree)[0]))]
            assert [one.partition("(")[0] for one in shown] == ["Index", "Agent", "Tree", "Node", "Pair"]
            assert max(map(len, shown)) < 200
            assert "<mark>" not in said._repr_html_()
            await asyncio.sleep(0)

    asyncio.run(notebook())


def test_pairs_are_those_of_the_command(tmp_path: Path, index: Index) -> None:
    trees = [tree for tree, _ in read_trees(shipped_run(tmp_path, 3) / "trees.jsonl")]
    options = ["--validation", "0", "--card.plots", "false", "--leakage.encoder", "none"]
    assert main(["pairs", "--trees", str(tmp_path), "--out", str(tmp_path / "pairs"), *options]) == 0
    written = list(read_records(tmp_path / "pairs" / "pairs.train.jsonl", Pair))
    made = Agent(index).pairs(trees)
    assert sorted(pair.margin or 0 for pair in made) == sorted(pair.margin or 0 for pair in written)
    assert {(pair.tree, pair.chosen_node) for pair in made} == {(pair.tree, pair.chosen_node) for pair in written}


def test_what_goes_wrong_is_said_and_the_agent_may_be_asked_again(index: Index, endpoint: Endpoint) -> None:
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"rollouts": 3}, "Agent: unknown key 'rollouts'; did you mean 'search.rollouts'?"),
        ({"retriever__mode": "dense"}, "Agent: unknown key 'retriever.mode'"),
        ({"search__rollouts": 0}, "search.rollouts: input should be greater"),
    )
    for keys, told in wrong:
        with pytest.raises(ConfigError, match=re.escape(told)):
            Agent(index, **keys)
    with pytest.raises(ConfigError, match="index folder not found"):
        Index.open("nowhere")
    with pytest.raises(RetrieverError):
        index.search(" ")
    with agent_of(index, endpoint) as agent:
        first = agent.ask(QUESTION)
        index.close()
        assert agent.ask(QUESTION).answer == first.answer, "a closed index is opened anew"
    with agent_of(index, endpoint, budget__calls=3) as agent:
        agent.ask(QUESTION)
        with pytest.raises(BudgetReached):
            agent.ask("Which is the capital of Peru?")
    with serve(lambda request: (200, {"choices": []})) as broken, agent_of(index, broken) as agent:
        for ask, kind in ((agent.ask, PolicyError), (agent.tree, RequestError), (agent.ask, PolicyError)):
            with pytest.raises(kind, match="every reply was broken"):
                ask(QUESTION)

    async def inside() -> None:
        index.search("Lima")

    with pytest.raises(ConfigError, match="a plain call waits"):
        run(inside())


LEFT_OPEN = """
import sys
from steprag import Agent, Index
from tests.fakes import descendants
index = Index.build([{"title": "Lima", "text": "Lima is the capital of Peru."}], encoder="none")
agent = Agent(index, adapter="atlas-agent")
print(agent.ask("What is the capital of Peru?").steps[0].action, *descendants(__import__("os").getpid()))
"""


@pytest.mark.slow
def test_an_engine_that_nobody_stopped_ends_with_the_program() -> None:
    ended = subprocess.run([sys.executable, "-c", LEFT_OPEN], capture_output=True, text=True, check=True)
    action, *engines = ended.stdout.split()
    assert action == "query"
    assert engines
    assert "Traceback" not in ended.stderr
    assert "pending" not in ended.stderr
    assert not [pid for pid in engines if Path(f"/proc/{pid}").exists()]


@pytest.mark.slow
def test_a_notebook_shows_words_as_words(browser: Browser, index: Index, endpoint: Endpoint) -> None:
    with agent_of(index, endpoint) as agent, page_in(browser) as page:
        shown = agent.ask(f"{QUESTION} {MARKUP}"), agent.tree(f"{QUESTION} {MARKUP}", "lek")
        page.set_content(f"<title>notebook</title>{''.join(one._repr_html_() for one in shown)}")
        frame = page.frame_locator("iframe")
        frame.get_by_role("heading", name=QUESTION).first.wait_for()
        frame.locator("#steps .row >> nth=1").click()
        frame.locator(".node-name").get_by_text("node 1").wait_for()
        assert page.title() == "notebook"
        assert page.locator("script, img").count() == 0
        assert page.frames[1].evaluate("window.origin") == "null"
