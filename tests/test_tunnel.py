"""The wind tunnel: its world, its policy in this process, its labels and its command."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from preference.rewards import Estimate, Rewards
from steprag.agent.grammar import Grammar
from steprag.cli import main
from steprag.experiments.tunnel.arms import ARMS, LABELS, LabelArm, made_pairs, narrowed
from steprag.experiments.tunnel.cells import SHIPPED, start_of
from steprag.experiments.tunnel.grow import trees, with_beliefs
from steprag.experiments.tunnel.play import answers, environment_of
from steprag.experiments.tunnel.policy import BatchedPolicy
from steprag.experiments.tunnel.statistics import difference, holm, trend
from steprag.experiments.tunnel.truth import right_steps
from steprag.experiments.tunnel.words import encode
from steprag.experiments.tunnel.world import KIND_OF, RELATIONS, FactWorld, Habits, demonstrate, habits
from steprag.tree import TREE_FORMAT, Node, Tree
from steprag.types import Found, Question, Usage

CAREFUL = Habits(dict.fromkeys(RELATIONS, 0.0), dict.fromkeys(RELATIONS, 0.0), stop=0.0)


def test_a_fact_is_found_under_its_own_word_alone() -> None:
    world = FactWorld(3)
    for person, relation in (("Bado", "boss"), ("Kuxa", "heir"), ("Mira", "poet")):
        told, found_by = world.fact(person, relation)
        title = f"{person} {found_by} {KIND_OF[relation]}"
        for word in RELATIONS[relation]:
            facts = {passage.title: passage.text for passage in asyncio.run(world.search(f"{person} {word}", 3))}
            assert len(facts) == 3
            assert facts.get(title) == (told if word == found_by else None)
    assert asyncio.run(world.search("nobody knows", 3)) == ()
    assert len({passage.id for passage in world.corpus()}) == 64 * 32 * 3


def test_questions_lead_from_fact_to_fact() -> None:
    world = FactWorld(5)
    for asked in world.questions(24, guessable=0.5):
        person, *relations = asked.question.split(" is ")[0].split()
        met = [person]
        for relation in relations:
            met.append(world.fact(met[-1], relation)[0])
        assert len(set(met)) == len(met) == asked.metadata["hops"] + 1
        assert len(asked.metadata["supporting_titles"]) == asked.metadata["hops"]
        named = asked.question.partition(" is ")[2]
        assert asked.golden_answers == ((("yes" if named == met[-1] else "no") if named else met[-1]),)
    assert world.questions(6) == FactWorld(5).questions(6) != FactWorld(6).questions(6)


def tree_of(world: FactWorld, asked: Question, how: Habits, seed: int = 0) -> Tree:
    """A demonstration as a tree of one branch."""
    nodes = [Node(0, None, 0)]
    for line in demonstrate(world, asked, how, random.Random(seed)):
        found = tuple(Found(passage.id, passage.title) for passage in line.passages)
        nodes.append(
            Node(len(nodes), len(nodes) - 1, len(nodes), line.action, line.text(), line.content, passages=found)
        )
    return Tree(TREE_FORMAT, asked, "closed", nodes=tuple(nodes), usage=Usage())


def test_the_truth_is_with_a_demonstrator_that_never_errs() -> None:
    world = FactWorld(8)
    asked = world.questions(36)
    assert all(all(right_steps(world, tree_of(world, one, CAREFUL))) for one in asked)
    wrong = [right_steps(world, tree_of(world, one, habits("weak"))) for one in asked]
    assert sum(not all(each) for each in wrong) > 20
    assert any(len(tree_of(world, one, CAREFUL).nodes) > 2 * one.metadata["hops"] + 2 for one in asked)  # a dead end


@pytest.fixture(scope="module")
def grown() -> tuple[FactWorld, list[Tree]]:
    torch.set_num_threads(1)
    world = FactWorld(21)
    asked = world.questions(18)
    policy = BatchedPolicy(start_of("middle", SHIPPED), 1.0)
    return world, with_beliefs(world, policy, trees(world, policy, asked, 40, 1, "flat"))


def test_the_policy_answers_as_if_it_were_asked_alone() -> None:
    world = FactWorld(9)
    asked = world.questions(12)
    for temperature in (0.0, 1.0):
        together = answers(world, BatchedPolicy(start_of("middle", SHIPPED), temperature), asked, seed=4)
        for number in (2, 7):
            alone = answers(
                world, BatchedPolicy(start_of("middle", SHIPPED), temperature), [asked[number]], seed=4 + 100 * number
            )
            assert alone[0].state == together[number].state
    assert any(one.prediction == each.golden_answers[0] for one, each in zip(together, asked, strict=True))


def test_a_score_is_the_models_own() -> None:
    world, model = FactWorld(9), start_of("middle", SHIPPED)
    environment = environment_of(world)
    prompt = environment.announced(environment.start(world.questions(1)[0].question))
    sample = asyncio.run(BatchedPolicy(model).score(prompt, " Bado </answer>"))
    ids = torch.tensor([[1, *encode(prompt[0]["content"]), *encode(prompt[1]["content"] + " Bado </answer>")]])
    logps = model(input_ids=ids).logits.log_softmax(-1)[0, -3:-1]
    told = logps[range(2), ids[0, -2:]].tolist()
    assert sample.completions[0].logprobs == pytest.approx(told, abs=1e-5)


@pytest.mark.slow
def test_trees_are_the_products_and_labels_tell_right_steps(grown: tuple[FactWorld, list[Tree]]) -> None:
    world, made = grown
    assert sum(tree.usage.calls for tree in made) >= 18 * 40
    for name, least in (("oracle", 1.0), ("marked facts", 0.95), ("outcomes", 0.5), ("rollouts", 0.5)):
        told = made_pairs(LabelArm(name, name, one_action=False), LABELS[name], world, made).truth
        assert told
        assert told.count(1) >= least * (len(told) - told.count(0)), name
    assert all(len(made_pairs(arm, LABELS[arm.label], world, made).pairs) for arm in ARMS if arm.label == "gain")


@pytest.mark.slow
def test_pairs_are_kept_and_turned_as_the_arm_says(grown: tuple[FactWorld, list[Tree]]) -> None:
    world, made = grown
    arm = LabelArm("x", "marked facts", turned=0.5, keep="many")
    before = made_pairs(arm, LABELS["marked facts"], world, made)
    after = narrowed(arm, before, made, 30, np.random.default_rng(0))
    assert len(after.pairs) == 30
    assert 5 < after.truth.count(-1) < 25
    mixed = narrowed(LabelArm("x", "marked facts", keep="mixed"), before, made, 0, np.random.default_rng(0))
    scores = {tree.question.id: {node.prediction_f1 for node in tree.nodes if node.terminal} for tree in made}
    assert mixed.pairs
    assert all({0.0, 1.0} <= scores[pair.question_id] for pair in mixed.pairs)


@pytest.mark.slow
def test_uct_grows_the_same_kind_of_tree() -> None:
    world = FactWorld(21)
    made = trees(world, BatchedPolicy(start_of("middle", SHIPPED), 1.0), world.questions(4, (2,)), 20, 1, "uct")
    assert all(tree.nodes[0].messages and (tree.usage.calls >= 20 or tree.status == "closed") for tree in made)


def test_statistics() -> None:
    rng = np.random.default_rng(1)
    base = rng.random((6, 400)) < 0.4
    better = base | (rng.random((6, 400)) < 0.2)
    found = difference(better, base)
    assert 8 < found.mean < 16
    assert found.low > 5
    assert found.drawn[0] > 5
    assert found.p < 0.01
    assert len(found.seeds) == 6
    assert difference(base, base).p == 1.0
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    rising = trend([np.full((4, 10), points) for points in (1.0, 3.0, 5.0)])
    assert rising.mean == pytest.approx(2.0)


def no_reward(tree: Tree, grammar: Grammar) -> Rewards:
    """A reward of one's own: longer searches are better."""
    del grammar
    return [Estimate(len(node.text) / 200, 0.0, "mine") for node in tree.nodes]


@pytest.mark.slow
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    argv = ["tunnel", "--quick", "--seeds", "2", "--out", str(out), "--arms", "start", "outcomes", "marked facts"]
    argv += ["--reward", "tests.test_tunnel:no_reward", "--lanes", "2"]
    assert main(argv) == 0
    page = (out / "report.md").read_text()
    assert page == capsys.readouterr().out.removesuffix("\n")
    assert "| mine |" in page
    assert "a: marked facts beat outcomes" in page
    assert (out / "hops.png").stat().st_size > 5000
    files = {path: path.stat().st_mtime_ns for path in out.rglob("*.json")}
    assert len(files) == 8
    assert len(json.loads(next(iter(files)).read_text())["right"]) == 60
    assert main(argv) == 0  # what is finished is not done again
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.json")} == files


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--arms", "outcome"], "unknown arm 'outcome'; known: start"),
        (["--cells", "x"], "unknown cell 'x'"),
        (["--seeds", "0"], "--seeds is 1 or more"),
        (["--reward", "tests.test_tunnel:nothing"], "give module:function"),
        (["--reward", "tests.test_tunnel"], "give module:function"),
        (["--reward", ":nothing"], "give module:function"),
    ],
)
def test_wrong_options(option: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tunnel", "--out", str(tmp_path), *option]) == 2
    assert said in capsys.readouterr().err
