"""The search: a whole golden tree, its invariants, and independence from timing."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from data_generation.config import RewardConfig, SearchConfig
from data_generation.search import Growth, grow, plant, select, uct
from steprag.environment import Environment
from steprag.errors import PolicyError
from steprag.files import to_dict
from steprag.prompts import load_profile
from steprag.tree import children_of, discounted
from steprag.types import Message, Node, Question, Sample, Tree
from tests.fakes import QUESTION, DictRetriever, ScriptedPolicy, answer, evidence, query

GOLDEN = Path(__file__).parent / "golden_tree.json"
SEARCH = SearchConfig(rollouts=6, children=3, depth=7)
ASKED = Question("q1", QUESTION, ("lek", "Albanian lek"))


def search(policy: ScriptedPolicy, config: SearchConfig = SEARCH, seed: int = 3) -> Tree:
    world = Environment(load_profile("transcript"), DictRetriever(), 3, config.depth)
    return asyncio.run(grow(plant(ASKED), world, policy, config, RewardConfig(), seed))


def test_the_golden_tree_is_rebuilt_whole() -> None:
    """Any change of the algorithm, the seeds, the prompts or the record shows here.

    To accept one: STEPRAG_ACCEPT=1 python -m tests.test_search, and read the difference.
    """
    assert to_dict(search(ScriptedPolicy())) == json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.mark.parametrize("seed", range(8))
def test_invariants_of_every_tree(seed: int) -> None:
    tree = search(
        ScriptedPolicy(), SearchConfig(rollouts=random.Random(seed).randint(1, 20), children=2 + seed % 3), seed
    )
    children = children_of(tree)
    for node, below in zip(tree.nodes, children, strict=True):
        assert tree.nodes[node.id] is node
        assert node.parent is None or (node.parent < node.id and node.depth == tree.nodes[node.parent].depth + 1)
        assert node.depth <= 7
        assert not (node.terminal and below)
        assert bool(below) <= (node.messages is not None)
        own = int(node.prediction_f1 is not None)
        assert node.visits == own + sum(child.visits for child in below)
        if node.prediction_f1 is not None:
            assert node.value == pytest.approx(discounted(node.prediction_f1, node.depth, 0.9))
        elif node.visits:
            total = sum(child.visits * child.value for child in below if child.value is not None)
            assert node.value == pytest.approx(total / node.visits)
        if node.failure is not None:
            assert node.terminal
            assert (node.visits, node.value, node.content) == (0, None, None)
    assert tree.usage.calls >= sum(node.usage.calls for node in tree.nodes)


def test_equal_siblings_are_merged_and_no_more_are_asked_for() -> None:
    policy = ScriptedPolicy(lambda prompt, draw: evidence("None") if "Read the" in prompt else answer("The Lek!"))
    tree = search(policy)
    assert [node.action for node in tree.nodes] == [None, "answer"]
    assert len(policy.prompts) == 1
    assert tree.usage.calls == 1


def test_a_closed_tree_stops_early() -> None:
    draws = iter([answer("lek"), answer("sol"), answer("real")])
    policy = ScriptedPolicy(lambda prompt, draw: next(draws))
    tree = search(policy, SearchConfig(rollouts=50, children=3))
    assert [node.prediction_f1 for node in tree.nodes[1:]] == [1.0, 0.0, 0.0]
    assert len(policy.prompts) == 1


def test_refused_completions_are_kept_with_their_reason_and_without_reward() -> None:
    tree = search(ScriptedPolicy(lambda prompt, draw: "Who knows?"), SearchConfig(rollouts=4, children=2))
    assert [(node.failure, node.text, node.value) for node in tree.nodes[1:]] == [("no_action", "Who knows?", None)] * 2
    assert tree.nodes[0].value is None


def test_the_deepest_step_is_an_answer() -> None:
    policy = ScriptedPolicy(lambda prompt, draw: {"Read the passages.": evidence(f"fact {draw}"), "Answer now.": answer(
        f"it {draw}")}.get(prompt.rsplit("\n", 1)[-1], query(f"thing {draw}")))  # fmt: skip
    tree = search(policy, SearchConfig(rollouts=12, children=3, depth=5))
    deepest = [node for node in tree.nodes if node.depth == 5]
    assert deepest
    assert {node.action for node in deepest} == {"answer"}


def test_uct_prefers_the_unvisited_then_value_then_the_less_known() -> None:
    growth = Growth(ASKED)
    for parent in (None, 0, 0, 0):
        growth.add(Node(id=len(growth.nodes), parent=parent, depth=int(parent is not None)), _state())
    growth.branched[0] = True
    growth.visits[:], growth.rewards[:] = [6, 3, 3, 0], [2.0, 1.5, 0.5, 0.0]
    assert select(growth, 1.414) == 3
    growth.closed[3] = True
    assert select(growth, 1.414) == 1
    growth.visits[1], growth.rewards[1] = 300, 150.0
    growth.visits[0] = 303
    assert uct(growth, 2, 1.414) > uct(growth, 1, 1.414)
    growth.closed[0] = True
    assert select(growth, 1.414) is None


def test_delays_change_nothing() -> None:
    class Slow(ScriptedPolicy):
        async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
            await asyncio.sleep(random.random() / 200)
            return await super().sample(messages, allowed, n=n, seed=seed)

    assert to_dict(search(Slow())) == to_dict(search(ScriptedPolicy()))


def test_an_endpoint_error_leaves_the_tree_as_far_as_it_grew() -> None:
    class Failing(ScriptedPolicy):
        async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
            if len(self.prompts) == 4:
                raise PolicyError("lost")
            return await super().sample(messages, allowed, n=n, seed=seed)

    growth = plant(ASKED)
    world = Environment(load_profile("transcript"), DictRetriever(), 3, 7)
    with pytest.raises(PolicyError):
        asyncio.run(grow(growth, world, Failing(), SEARCH, RewardConfig(), 3))
    assert len(growth.nodes) > 1
    assert growth.usage.calls == 4


def _state():  # noqa: ANN202
    return Environment(load_profile("transcript"), DictRetriever(), 3, 7).start(QUESTION)


if __name__ == "__main__":
    import os

    if os.environ.get("STEPRAG_ACCEPT"):
        GOLDEN.write_text(
            json.dumps(to_dict(search(ScriptedPolicy())), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
