"""The search: a whole golden tree, its invariants, independence from timing; what a leaf is worth."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from data_generation.config import GenerateConfig
from data_generation.expand import Searcher, make_searcher
from data_generation.generate import search_one
from data_generation.growth import SearchNode, SearchTree, add_reward, root_only, uct
from data_generation.plan import most_calls
from data_generation.search import grow, select
from data_generation.values import VALUES, Fresh, Valued
from inference.scoring.answer_judge import parse
from steprag.agent.belief import probability
from steprag.agent.environment import Environment
from steprag.agent.judge import Judge, Judgement, VerdictFormat, parse_critique, parse_score
from steprag.agent.profiles import load_profile
from steprag.batch.journal import Journal
from steprag.config.load import load_config
from steprag.config.sections import JudgeConfig
from steprag.errors import ConfigError, PolicyError
from steprag.policy.open import open_model
from steprag.policy.protocols import Policy
from steprag.records.jsonl import to_dict
from steprag.tree import Node, Tree, children_of, discounted
from steprag.types import Message, Question, Sample, State, Usage
from tests import fakes
from tests.fakes import BelievingPolicy, ScriptedPolicy, answer, by_turn, evidence, in_turn, query

GOLDEN = Path(__file__).parent / "golden_tree.json"
SEARCH = {"rollouts": 6, "extra": 0, "children": 3}


def _key(name: str) -> str:
    return name if "." in name else f"episode.{name}" if name == "depth" else f"search.{name}"


ASKED = Question("q1", fakes.QUESTION, ("lek", "Albanian lek"))


def configured(**keys: object) -> GenerateConfig:
    """A recipe by its keys, "__" for "."."""
    return load_config(GenerateConfig, None, {"seed": 3, **{key.replace("__", "."): keys[key] for key in keys}})


def environment(config: GenerateConfig) -> Environment:
    return Environment(load_profile("transcript"), fakes.DictRetriever(), config.episode.top_k, config.episode.depth)


def searcher(policy: Policy, seed: int = 3, **keys: object) -> Searcher:
    config = configured(**{_key(name): value for name, value in {**SEARCH, **keys}.items()}, seed=seed)
    return make_searcher(environment(config), policy, None, config)


def planted() -> SearchTree:
    return root_only(ASKED, searcher(ScriptedPolicy()).environment)


def grown(world: Searcher, question: Question = ASKED) -> Tree:
    return asyncio.run(grow(root_only(question, world.environment), world))


def search(policy: Policy, seed: int = 3, **keys: object) -> Tree:
    return grown(searcher(policy, seed, **keys))


def test_the_golden_tree_is_rebuilt_whole() -> None:
    """Any change of the algorithm, the seeds, the prompts or the record shows here.

    To accept one: STEPRAG_ACCEPT=1 python -m tests.test_search, and read the difference.
    """
    assert to_dict(search(ScriptedPolicy(), rollouts=7)) == json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.mark.parametrize("seed", range(8))
def test_invariants_of_every_tree(seed: int) -> None:
    rollouts = random.Random(seed).randint(1, 20)
    tree = search(ScriptedPolicy(), seed, rollouts=rollouts, children=2 + seed % 3, wave=1 + seed % 4)
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
    policy = ScriptedPolicy(in_turn(answer("lek"), answer("sol"), answer("real")))
    tree = search(policy, rollouts=50)
    assert [node.prediction_f1 for node in tree.nodes[1:]] == [1.0, 0.0, 0.0]
    assert len(policy.prompts) == 1


def test_refused_completions_are_kept_with_their_reason_and_without_reward() -> None:
    tree = search(ScriptedPolicy(lambda prompt, draw: "Who knows?"), rollouts=4, children=2)
    assert [(node.failure, node.text, node.value) for node in tree.nodes[1:]] == [("no_action", "Who knows?", None)] * 2
    assert tree.nodes[0].value is None


def numbered(kind: Callable[[str], str], prompt: str, draw: int) -> str:
    """A step of that kind, another for each draw."""
    return kind(f"x{draw}")


def test_the_deepest_step_is_an_answer() -> None:
    thing, fact, it = (partial(numbered, kind) for kind in (query, evidence, answer))
    tree = search(ScriptedPolicy(by_turn(thing, fact, it)), rollouts=12, depth=5, hopeless=None)
    assert {node.action for node in tree.nodes if node.depth == 5} == {"answer"}


RULE = partial(uct, exploration=1.414)


def test_uct_prefers_the_unvisited_then_value_then_the_less_known() -> None:
    growth = planted()
    root, (first, second, third) = growth.root, [_child(growth) for _ in range(3)]
    root.full = True
    for child, rewards in ((first, (1.0, 0.5, 0.0)), (second, (0.5, 0.0, 0.0))):
        for reward in rewards:
            add_reward(child, reward)
    assert select(growth, RULE) is third
    third.closed = True
    assert select(growth, RULE) is first
    for _ in range(297):
        add_reward(first, 0.5)
    assert uct(second, 1.414) > uct(first, 1.414)
    root.closed = True
    assert select(growth, RULE) is None


def test_a_leaf_in_flight_counts_as_visited() -> None:
    """WU-UCT: of two equal children, the second leaf of a wave goes to the one that nobody is at."""
    growth = planted()
    growth.root.full = True
    first, second = _child(growth), _child(growth)
    for child in (first, second):
        child.full = True
        _child(growth, child)
        add_reward(child, 0.5)
    leaf = select(growth, RULE)
    assert leaf
    assert leaf.parent is first
    leaf.mark_pending(1)
    leaf.busy = True
    other = select(growth, RULE)
    assert other
    assert other.parent is second


@pytest.mark.parametrize(("script", "keys", "status"), [
    ([answer("lek"), answer("sol"), query("a")], {"contrast": 1}, "enough"),
    ([answer("sol"), answer("real"), query("a")], {"hopeless": 1}, "hopeless"),
    ([answer("lek"), answer("sol"), query("a")], {"rollouts": 2, "contrast": None}, "rollouts"),
    ([answer("lek"), answer("sol"), query("a")], {"tree.calls": 1}, "limit"),
])  # fmt: skip
def test_a_tree_ends_for_a_reason(script: list[str], keys: dict[str, object], status: str) -> None:
    config = configured(search__rollouts=9, **{_key(name): value for name, value in keys.items()})
    assert grown(replace(searcher(beginning(*script)), config=config)).status == status


def beginning(*steps: str) -> ScriptedPolicy:
    """A policy that says these steps first, and then others, each but once."""
    thing, fact, it = (partial(numbered, kind) for kind in (query, evidence, answer))
    return ScriptedPolicy(by_turn(in_turn(*steps, then=thing), fact, it))


@pytest.mark.parametrize(("first", "iterations"), [("lek", 7), ("peso", 3)])
def test_a_mixed_tree_gets_more_iterations(first: str, iterations: int) -> None:
    keys = {"rollouts": 3, "extra": 4, "wave": 1, "hopeless": None, "contrast": None}
    policy = beginning(answer(first), answer("sol"), query("a"))
    assert search(policy, **keys).iterations == iterations


def _child(growth: SearchTree, parent: SearchNode | None = None) -> SearchNode:
    above = parent or growth.root
    node = SearchNode(Node(id=-1, parent=None, depth=above.record.depth + 1), growth.root.state, above)
    above.children.append(node)
    growth.number(node)
    return node


def test_an_endpoint_error_leaves_the_tree_as_far_as_it_grew() -> None:
    def lost(policy: ScriptedPolicy) -> None:
        if len(policy.prompts) == 4:
            raise PolicyError("lost")

    growth = planted()
    with pytest.raises(PolicyError):
        asyncio.run(grow(growth, searcher(ScriptedPolicy(before=lost), wave=1)))
    assert len(growth.nodes) > 1
    assert growth.usage.calls == 4


def test_a_finished_tree_is_freed_without_a_search_for_cycles() -> None:
    """Such a search stops all requests while it walks over every living object."""
    found: list[weakref.ref[SearchNode]] = []

    def watched(policy: ScriptedPolicy) -> None:
        if len(policy.prompts) == 5:  # by then the tree has most of its nodes; to list all objects is slow
            found.extend(weakref.ref(node) for node in nodes() if id(node) not in before)

    def nodes() -> list[SearchNode]:
        return [thing for thing in gc.get_objects() if isinstance(thing, SearchNode)]

    gc.collect()
    others = nodes()  # of tests before
    before = {id(node) for node in others}
    gc.disable()
    try:
        asyncio.run(search_one(ASKED, searcher(ScriptedPolicy(before=watched))))
        assert len(found) > 5
        assert not any(node() for node in found)
    finally:
        gc.enable()


def believing(policy: BelievingPolicy, question: Question = ASKED, **keys: object) -> Tree:
    """The tree of a search that asks what the policy believes."""
    return grown(replace(searcher(policy, score=True, **keys), scorer=policy), question)


@pytest.mark.parametrize("everywhere", [True, False])
def test_every_state_has_a_belief_or_only_those_without_passages_and_asking_changes_no_tree(everywhere: bool) -> None:
    asked = believing(BelievingPolicy(), score_found=everywhere)
    assert {bool(node.passages) for node in asked.nodes if not node.terminal} == {True, False}
    for node in asked.nodes:
        assert (node.belief is not None) == (not node.terminal and (everywhere or not node.passages))
    bare = replace(asked, nodes=tuple(replace(node, belief=None) for node in asked.nodes))
    assert bare == search(ScriptedPolicy()), "prices and counts of the search are its own"


@pytest.mark.parametrize(("question", "counted"), [(ASKED, True), (replace(ASKED, golden_answers=("Tirana",)), False)])
def test_evidence_is_valued_by_belief_unless_the_question_can_be_guessed(question: Question, counted: bool) -> None:
    policy = BelievingPolicy()
    given = searcher(policy, score=True)
    gain = partial(VALUES["gain"], config=given.config, judge=None)
    tree = grown(replace(given, scorer=policy, value=gain), question)
    children = children_of(tree)
    kept = [node for node in tree.nodes if node.action == "evidence"]
    assert kept
    for node in kept:
        assert (node.belief is not None) == counted, "belief is not asked for where it tells nothing"
        below = sum(child.visits for child in children[node.id])
        assert node.visits == below + counted
        total = sum(child.visits * (child.value or 0) for child in children[node.id])
        believed = probability(node.belief) if node.belief else 0.0
        assert (node.value or 0) * node.visits == pytest.approx(total + believed)


@pytest.mark.parametrize(("golden", "found"), [("lek", True), ("dinar", False), ("Tirana", None)])
def test_a_search_says_whether_it_found_an_answer_that_is_no_guess(golden: str, found: bool | None) -> None:
    tree = grown(searcher(ScriptedPolicy()), replace(ASKED, golden_answers=(golden,)))
    assert all(node.golden_found is None for node in tree.nodes if node.action != "query")
    assert {node.golden_found for node in tree.nodes if node.action == "query" and node.passages} == {found}


def test_a_tree_is_not_hopeless_where_a_step_gained() -> None:
    wrong = partial(numbered, answer)
    tried = partial(numbered, lambda draw: query(draw) if int(draw[1:]) % 3 else answer(draw))
    script = by_turn(tried, evidence("Prices in Albania are quoted in the lek."), wrong)
    assert search(ScriptedPolicy(script), rollouts=9, hopeless=3).status == "hopeless"
    assert believing(BelievingPolicy(script), rollouts=9, hopeless=3).status == "rollouts"
    assert believing(BelievingPolicy(script), rollouts=9, hopeless=3, score_found=False).status == "rollouts"
    unmoved = believing(BelievingPolicy(script), replace(ASKED, golden_answers=("dinar",)), rollouts=9, hopeless=3)
    assert unmoved.status == "hopeless"


def test_drills_are_refused_in_a_line_and_keys_of_runs_without_them_are_read() -> None:
    made = load_config(GenerateConfig, None, {}, {"search": {"drill": None, "children": 2}})
    assert made.search.children == 2
    with pytest.raises(ConfigError, match=r"search\.drill is gone"):
        load_config(GenerateConfig, None, {}, {"search": {"drill": 8}})


class OneARequest(ScriptedPolicy):
    """An endpoint that gives one completion a request, and is asked again for the others."""

    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        parts = [await super(OneARequest, self).sample(messages, allowed, n=1, seed=seed + place) for place in range(n)]
        whole = tuple(completion for part in parts for completion in part.completions)
        return Sample(whole, sum((part.usage for part in parts), Usage()))


@pytest.mark.parametrize("policy", [ScriptedPolicy, OneARequest])
@pytest.mark.parametrize(("rollouts", "wave"), [(1, 4), (2, 8), (3, 2), (5, 4), (16, 2), (7, 3)])
@pytest.mark.parametrize("extra", [0, 3])
def test_waves_never_overshoot_the_rollouts_nor_the_calls_that_plan_names(
    policy: type[ScriptedPolicy], rollouts: int, wave: int, extra: int
) -> None:
    asked, keys = policy(), {"rollouts": rollouts, "wave": wave, "extra": extra}
    world = searcher(asked, **keys, contrast=None, hopeless=None)
    tree = grown(world)
    assert tree.iterations is not None
    assert tree.iterations <= rollouts + extra
    assert tree.status == "closed" or tree.iterations in (rollouts, rollouts + extra)
    assert len(asked.prompts) == tree.usage.calls <= sum(most_calls(world.config).values())


def scoring(*replies: str) -> ScriptedPolicy:
    """A judge: these replies first, then 90 where the last step says "lek", else 20."""
    return ScriptedPolicy(in_turn(*replies, then=lambda prompt, _: "90" if "<answer> lek" in prompt else "20"))


def judged(judge: ScriptedPolicy, policy: ScriptedPolicy | None = None, **keys: object) -> Tree:
    config = configured(**keys)
    asked = Judge(judge, config.reward.gold)
    return grown(make_searcher(environment(config), policy or ScriptedPolicy(), asked, config))


@pytest.mark.parametrize(("reply", "score"), [
    ("85", 0.85), (" 0\n", 0.0), ("100", 1.0), ('{"score": 7}', 0.07),
    ("85/100", None), ("[85] out of 100", None), ("7.5", None), ("0-20", None), ("101", None), ("", None), ("-3", None),
    ('{"score": "7"}', None), ('{"score": true}', None), ('{"score": 7, "why": 1}', None), ("{", None), ("007", None),
    ('{"score":' + "[" * 100_000, None), ('{"score":' + "9" * 5_000 + "}", None),
], ids=lambda value: str(value)[:20])  # fmt: skip
def test_a_score_is_read_whole_or_not_at_all(reply: str, score: float | None) -> None:
    assert parse_score(reply) == score
    assert parse(reply) is None, "nor does it say whether an answer is right"


@pytest.mark.parametrize(("reply", "score"), [
    ("Vague. So the score is [85].", 0.85), ("the score is 7; no: So the score is **20**/100", 0.2),
    ("So the score is: 62.5 out of 100", 0.625), ("So the SCORE is 100", 1.0), ("85 of 100", None), ("", None),
    ("So the score is [Score].", None), ("So the score is 120", None), ("So the score is -3", None),
    ("So the score is " + "9" * 5_000, None),
], ids=lambda value: str(value)[:20])  # fmt: skip
def test_a_critique_ends_in_its_score(reply: str, score: float | None) -> None:
    assert parse_critique(reply) == score


def test_the_published_preset_repeats_the_published_loop() -> None:
    """64 iterations of one judge call and at most one policy call, finished leaves judged again (arXiv 2505.14069)."""
    policy, judge = ScriptedPolicy(), scoring()
    tree = judged(judge, policy, search__preset="reasonrag")
    failed = sum(node.failure is not None for node in tree.nodes)
    assert tree.iterations == 64
    assert len(policy.prompts) <= 64
    assert 64 - len(policy.prompts) <= len(judge.prompts) <= 64
    assert len(policy.prompts) + len(judge.prompts) == tree.usage.calls <= 128
    assert len(judge.prompts) > len(tree.nodes) - 1 - failed, "no finished leaf was judged again"
    assert all(len([n for n in tree.nodes if n.parent == node.id]) <= 2 for node in tree.nodes)
    assert "Right answers: lek / Albanian lek" in judge.prompts[0][1]["content"]
    with_key = configured(search__preset="reasonrag", search__rollouts="5")
    assert (with_key.search.rollouts, with_key.search.children, with_key.reward.name) == (5, 2, "judge")


def test_both_sources_stay_on_the_node() -> None:
    tree = judged(scoring(), reward__name="mixed", reward__weight=0.25, reward__gold=False)
    answers = [node for node in tree.nodes if node.prediction_f1 is not None]
    assert len({node.prediction_f1 for node in answers}) > 1
    for node in answers:
        assert node.judge is not None
        spre = (node.prediction_f1 or 0.0) * 0.9**node.depth
        assert node.value == pytest.approx(0.75 * spre + 0.25 * node.judge["score"])


def test_a_reply_without_a_score_is_asked_for_again_and_never_counts_as_zero() -> None:
    policy = ScriptedPolicy(lambda prompt, draw: answer("lek"))
    judge = scoring("well, 85 out of 100", "85")
    tree = judged(judge, policy, reward__name="judge", search__rollouts=1)
    assert [node.judge for node in tree.nodes[1:]] == [{"score": 0.85, "text": "85"}]
    assert len(judge.prompts) == 2
    tree = judged(scoring("?", "??"), policy, reward__name="judge", search__rollouts=1)
    assert [(node.judge, node.value) for node in tree.nodes[1:]] == [({"score": None, "text": "??"}, None)]
    assert tree.nodes[0].value is None


@pytest.mark.parametrize(("temperature", "requests"), [(0.0, 1), (0.7, 2)])
def test_a_greedy_judge_is_not_asked_twice_for_one_reply(temperature: float, requests: int, tmp_path: Path) -> None:
    async def score(base_url: str) -> Judgement[float]:
        config = JudgeConfig(engine="openai", model="double", base_url=base_url, temperature=temperature)
        async with open_model(config, VerdictFormat()) as model, Journal(tmp_path / "calls.sqlite") as journal:
            judge = Judge(journal.question(ASKED).policy(model.policy, "judge", model.gate), gold=True)
            return await judge.score(ASKED, State(ASKED.question), seed=1)

    with fakes.serve(fakes.chat_reply(lambda prompt, draw: "I cannot say.")) as endpoint:
        assert asyncio.run(score(endpoint.url)).score is None
        assert len(endpoint.requests) == requests


def test_queries_are_not_judged_for_their_tags() -> None:
    """Passage-like markup in a question cannot close the judge's prompt."""
    judge = scoring()
    asked = replace(ASKED, question="<|im_end|>Who? </answer>")
    asyncio.run(Judge(judge, True).score(asked, State(asked.question), seed=1))
    assert "<|im_end|>" not in judge.prompts[0][1]["content"]


def test_a_judge_that_is_named_in_part_is_still_greedy() -> None:
    judge = configured(judge__model="gpt-4o").judge
    assert (judge.model, judge.temperature, judge.max_tokens) == ("gpt-4o", 0.0, 16)


def test_another_rule_and_another_value_need_no_branch_in_the_search() -> None:
    """mctx's way: both are functions that the search is given. Here: the last child first, every answer worth 1."""
    config = configured(search__rollouts=12, search__contrast=None)
    visited: list[SearchNode] = []

    def newest(node: SearchNode) -> float:
        visited.append(node)
        return float(node.id)

    async def all_right(question: Question, fresh: Fresh) -> Valued:
        return [(node, 1.0) for node in fresh.answers], Usage()

    tree = grown(Searcher(environment(config), ScriptedPolicy(), newest, all_right, config))
    assert visited
    assert {node.value for node in tree.nodes if node.visits} == {1.0}


if __name__ == "__main__":
    import os

    if os.environ.get("STEPRAG_ACCEPT"):
        tree = to_dict(search(ScriptedPolicy(), rollouts=7))
        GOLDEN.write_text(json.dumps(tree, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
