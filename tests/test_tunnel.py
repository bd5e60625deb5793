"""The wind tunnel: its world, its policy in this process, its labels and its command."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from apps.commands import main
from apps.tunnel import grpo
from apps.tunnel.arms import ARMS, RATES, LabelArm
from apps.tunnel.grow import SEARCHES, Forest, answers, environment_of, flat, grown, with_ends
from apps.tunnel.labels import LABELS, named_label, skills
from apps.tunnel.model import FACTS, START, forward, logits, start_of
from apps.tunnel.policy import BatchedPolicy
from apps.tunnel.report import CellResults, goals_of, read_cell, write
from apps.tunnel.statistics import holm, of_seeds, trend
from apps.tunnel.train import Schedule, dpo, packed, sft, token_logps
from apps.tunnel.unit import made_pairs, narrowed, pair_rows
from apps.tunnel.world import HOPS, KIND_OF, RELATIONS, FactWorld, parts_of, right_steps
from benchmarks.tunnel_starts import Habits, Recipe, demonstrate, demonstrations, differences, habits, pretrained
from data_generation.expand import Searcher
from data_generation.growth import SearchTree
from preference.rewards import Estimate, Rewards
from steprag.agent.grammar import Grammar
from steprag.errors import ConfigError
from steprag.records.jsonl import write_json
from steprag.tree import TREE_FORMAT, Node, Tree
from steprag.types import Found, Message, Question, Usage

CAREFUL = Habits(dict.fromkeys(RELATIONS, 0.0), dict.fromkeys(RELATIONS, 0.0), stop=0.0)


def test_a_fact_is_found_under_its_own_word_alone() -> None:
    world = FactWorld(3)
    for person, relation in (("Anna", "boss"), ("Maria", "heir"), ("Rosa", "poet")):
        told, found_by = world.fact(person, relation)
        title = f"{person} {found_by} {KIND_OF[relation]}"
        for word in RELATIONS[relation]:
            facts = {passage.title: passage.text for passage in asyncio.run(world.search(f"{person} {word}", 3))}
            assert len(facts) == 3
            assert facts.get(title) == (told if word == found_by else None)
    assert asyncio.run(world.search("nobody knows", 3)) == ()
    assert len({passage.id for passage in world.corpus()}) == 64 * 32 * 3


def test_the_worlds_stay_those_of_the_published_figures() -> None:
    """As the policy reads them, whatever persons and words are called."""
    digest = hashlib.sha256()
    for asked in FactWorld(77).questions(60, guessable=0.5):
        digest.update(bytes(FACTS.encode(asked.question)))
    for passage in FactWorld(77).corpus():
        digest.update(bytes(FACTS.encode(f"{passage.title} {passage.text}")))
    assert digest.hexdigest()[:16] == "e122b0f6a84cf189"


def test_questions_lead_from_fact_to_fact() -> None:
    world = FactWorld(5)
    for asked in world.questions(24, guessable=0.5):
        person, relations, named = parts_of(asked.question)
        met = [person]
        for relation in relations:
            met.append(world.fact(met[-1], relation)[0])
        assert len(set(met)) == len(met) == asked.metadata["hops"] + 1
        assert len(asked.metadata["supporting_titles"]) == asked.metadata["hops"]
        assert asked.golden_answers == ((("yes" if named == met[-1] else "no") if named else met[-1]),)
    assert world.questions(6) == FactWorld(5).questions(6) != FactWorld(6).questions(6)


def tree_of(world: FactWorld, asked: Question, how: Habits, seed: int = 0) -> Tree:
    """A demonstration as a tree of one branch."""
    nodes = [Node(0, None, 0)]
    for line in demonstrate(world, asked, how, random.Random(seed)):
        found = tuple(Found(passage.id, passage.title) for passage in line.passages)
        nodes.append(Node(len(nodes), len(nodes) - 1, len(nodes), line.action, line.text, line.content, passages=found))
    return Tree(TREE_FORMAT, asked, "closed", nodes=tuple(nodes), usage=Usage())


def test_the_truth_is_with_a_demonstrator_that_never_errs() -> None:
    world = FactWorld(8)
    asked = world.questions(36)
    assert all(all(right_steps(world, tree_of(world, one, CAREFUL))) for one in asked)
    wrong = [right_steps(world, tree_of(world, one, habits("weak"))) for one in asked]
    assert sum(not all(each) for each in wrong) > 20
    assert any(len(tree_of(world, one, CAREFUL).nodes) > 2 * one.metadata["hops"] + 2 for one in asked)  # a dead end


def test_the_forward_pass_is_that_of_transformers() -> None:
    from transformers import LlamaForCausalLM

    theirs, ours = LlamaForCausalLM.from_pretrained(START, dtype=torch.float32), start_of("middle")
    for shown in demonstrations(FactWorld(4), "middle", HOPS, 6, random.Random(1)):
        row = torch.tensor([shown.ids])
        told = logits(ours, forward(ours, row, torch.arange(row.shape[1])[None]))
        assert torch.allclose(told, theirs(input_ids=row).logits, atol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_policy_answers_as_if_it_were_asked_alone(temperature: float) -> None:
    world, start = FactWorld(9), start_of("middle")
    environment = environment_of(world)
    prompts = [environment.observe(environment.start(asked.question)).messages for asked in world.questions(12)]

    async def said(policy: BatchedPolicy, some: list[int], n: int) -> list[list[str]]:
        samples = await asyncio.gather(*(policy.sample(prompts[i], (), n=n, seed=i) for i in some))
        return [[one.text for one in sample.completions] for sample in samples]

    policy = BatchedPolicy(start, temperature)
    together = asyncio.run(said(policy, list(range(12)), 3))
    assert asyncio.run(said(policy, list(range(12)), 3)) == together  # from what it has kept
    for i in (2, 7):
        assert asyncio.run(said(BatchedPolicy(start, temperature), [i], 3)) == [together[i]]


def test_the_start_answers_some_questions() -> None:
    world = FactWorld(9)
    asked = world.questions(24)
    said = answers(environment_of(world), start_of("middle"), asked)
    assert 2 <= sum(one in each.golden_answers for one, each in zip(said, asked, strict=True)) <= 20


def test_a_score_is_the_models_own() -> None:
    world, start = FactWorld(9), start_of("middle")
    environment = environment_of(world)
    prompt = environment.announced(environment.start(world.questions(1)[0].question))
    sample = asyncio.run(BatchedPolicy(start).score(prompt, " Anna </answer>"))
    ids = torch.tensor(
        [[1, *FACTS.encode(prompt[0]["content"]), *FACTS.encode(prompt[1]["content"] + " Anna </answer>")]]
    )
    told = logits(start, forward(start, ids, torch.arange(ids.shape[1])[None])).log_softmax(-1)[0, -3:-1]
    assert sample.completions[0].logprobs == pytest.approx(told[range(2), ids[0, -2:]].tolist(), abs=1e-5)


@pytest.fixture(scope="module")
def forest() -> Forest:
    torch.set_num_threads(1)
    world, start = FactWorld(21), start_of("middle")
    return Forest(world, grown(world, start, world.questions(18), 40, 1, flat), start)


@pytest.mark.slow
def test_pairs_are_packed_without_seeing_each_other(forest: Forest) -> None:
    rows = pair_rows(made_pairs(LabelArm("x", "oracle"), LABELS["oracle"], forest)[:9])
    alone = [(row,) for side in zip(*rows, strict=True) for row in side]
    apart = token_logps(forest.weights, packed(alone))
    batch = packed(rows)
    order = batch.whose.argsort(stable=True)
    assert torch.allclose(token_logps(forest.weights, batch)[order], apart, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("label", "least"), [("oracle", 1.0), ("marked facts", 0.95), ("outcomes", 0.5),
                                              ("rollouts", 0.5), ("judge", 0.5), ("gain", 0.4)])  # fmt: skip
def test_labels_tell_right_steps(forest: Forest, label: str, least: float) -> None:
    told = [truth for _, truth in made_pairs(LabelArm(label, label, one_action=False), LABELS[label], forest)]
    assert told
    assert told.count(1) >= least * (len(told) - told.count(0))


@pytest.mark.slow
def test_every_label_speaks_of_every_tree(forest: Forest) -> None:
    assert {arm.label for arm in ARMS} - {""} <= LABELS.keys()
    for name, label in LABELS.items():
        assert [len(values) for values in label(forest)] == [len(tree.nodes) for tree in forest.trees], name


def test_skills_are_the_relation_due_and_the_word() -> None:
    world = FactWorld(8)
    first = {name: words[0] for name, words in RELATIONS.items()}
    each = ((one, *parts_of(one.question)) for one in world.questions(60, (2,)))
    asked = next(one for one, who, (due, _), _ in each if world.fact(who, due)[1] == first[due])
    relations = parts_of(asked.question)[1]
    told = skills(tree_of(world, asked, CAREFUL))
    assert told[1][:2] == ("query", relations[0])
    assert told[-1] == ("answer", "0")


@pytest.mark.slow
def test_pairs_are_kept_and_turned_as_the_arm_says(forest: Forest) -> None:
    before = made_pairs(LabelArm("x", "marked facts"), LABELS["marked facts"], forest)
    rng = np.random.default_rng(0)
    after = narrowed(LabelArm("x", "marked facts", turned=0.5, keep="many"), before, forest, rng)
    assert len(after) == len(made_pairs(ARMS[1], LABELS["outcomes"], forest))
    assert 0 < sum(truth < 0 for _, truth in after) < len(after)
    mixed = narrowed(LabelArm("x", "marked facts", keep="mixed"), before, forest, rng)
    scores = {tree.question.id: {node.prediction_f1 for node in tree.nodes if node.terminal} for tree in forest.trees}
    assert mixed
    assert all({0.0, 1.0} <= scores[pair.question_id] for pair, _ in mixed)


@pytest.mark.slow
@pytest.mark.parametrize("how", SEARCHES)
def test_searches_grow_the_same_kind_of_tree(how: str) -> None:
    world = FactWorld(21)
    made = grown(world, start_of("middle"), world.questions(4, (2,)), 20, 1, SEARCHES[how])
    for tree in made:
        assert 15 <= tree.usage.calls < 60 or tree.status == "closed"
        assert all(tree.nodes[node.parent or 0].messages for node in tree.nodes)
        assert tree.nodes[0].visits == sum(node.visits for node in tree.nodes if node.terminal)


@pytest.mark.slow
def test_training_moves_towards_what_is_chosen(forest: Forest) -> None:
    rows, rng = pair_rows(made_pairs(ARMS[2], LABELS["marked facts"], forest)), np.random.default_rng(0)
    schedule = Schedule(6, 8, 1e-3)
    chosen = [one for one, _ in rows]
    trained = dpo(forest.weights, rows, schedule, rng), sft(forest.weights, chosen, schedule, rng)
    policies = (forest.weights, *trained)
    before, *after = (token_logps(each, packed([(one,) for one in chosen])).mean() for each in policies)
    assert min(after) > before


@pytest.mark.slow
@pytest.mark.parametrize("keys", ["branches", "marked facts a turn"])
def test_arms_of_grpo_are_the_products(keys: str) -> None:
    """Tokens as the tunnel's own policy reads them; a second training makes the same weights."""
    world, arm = FactWorld(9), LabelArm(f"GRPO, {keys}", method="grpo", rate=1e-3, keys=keys)
    asked = world.questions(4, (1,))
    weights, facts = grpo.trained(arm, world, asked, 1)
    again, _ = grpo.trained(arm, world, asked, 1)
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    assert not torch.equal(weights["model.norm.weight"], start_of("ended")["model.norm.weight"])
    assert 2 * 4 * 9 < facts["calls"] < 2 * 4 * 9 * 8
    assert sum(one is not None for one in answers(with_ends(environment_of(world)), start_of("ended"), asked)) == 4


def test_a_start_is_kept_as_its_difference() -> None:
    begun = start_of("middle")
    assert [name for name in begun if not torch.equal(begun[name], start_of("weak")[name])]
    ended = {name: each + 0.01 * torch.randn_like(each) for name, each in begun.items()}
    kept = differences(begun, ended)
    assert all((begun[n] + kept[n].float() * kept[f"{n}.step"] - ended[n]).abs().max() < 3e-4 for n in begun)


@pytest.mark.slow
def test_a_recipe_makes_the_same_start_again() -> None:
    one, other = (pretrained(Recipe(steps=2, batch=4)).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_statistics() -> None:
    rng = np.random.default_rng(1)
    base = rng.random((6, 400)) < 0.4
    better = base | (rng.random((6, 400)) < 0.2)
    found = of_seeds(100.0 * (better.astype(float) - base))
    assert 8 < found.mean < 16
    assert found.low > 5
    assert found.drawn[0] > 5
    assert found.p < 0.01
    assert found.beyond(5) < 0.01 < 0.9 < found.beyond(20)
    assert len(found.seeds) == 6
    assert of_seeds(np.zeros((6, 400))).p == 1.0
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    rising = trend([np.full((4, 10), points) for points in (1.0, 3.0, 5.0)])
    assert rising.mean == pytest.approx(2.0)


def cell(name: str, **shares: float) -> CellResults:
    """A cell whose arms are right in such shares of the questions, a little more with every seed."""
    told = {arm.replace("_", " "): {seed: {"right": [i < 100 * share + seed for i in range(100)]} for seed in (1, 2, 3)}
            for arm, share in shares.items()}  # fmt: skip
    return CellResults(name, told, np.array([1] * 100))


def test_goals_are_judged_by_their_intervals() -> None:
    main = cell("1 to 6 hops", outcomes=0.3, rollouts=0.32, marked_facts=0.5, chained_match=0.31)
    main.told["marked facts, 20 % turned"] = cell("", a=0.38).told["a"]
    main.told["rollouts"][3] = {"right": [i < 35 for i in range(100)]}
    cells = {"1 to 6 hops": main, "1 or 2 hops": cell("1 or 2 hops", outcomes=0.3, marked_facts=0.4),
             "4 to 6 hops": cell("4 to 6 hops", outcomes=0.2, marked_facts=0.55)}  # fmt: skip
    judged = {goal.name[0]: goal.reached for goal in goals_of(cells)}
    assert judged == {"a": True, "b": True, "c": True, "d": True, "e": False}
    main.told["marked facts, 20 % turned"] = cell("", a=0.48).told["a"]
    assert {goal.name[0]: goal.reached for goal in goals_of(cells)}["d"] is False


def test_an_error_of_the_policy_reaches_all_who_wait() -> None:
    policy = BatchedPolicy({name: each for name, each in start_of("middle").items() if "norm" not in name})

    async def asked() -> list[object]:
        some = [
            policy.score((Message(role="user", content="Who is Anna's doctor?"),), " Anna </answer>") for _ in range(2)
        ]
        return list(await asyncio.wait_for(asyncio.gather(*some, return_exceptions=True), 60))

    assert [type(each) for each in asyncio.run(asked())] == [KeyError, KeyError]


def test_results_of_another_version_are_refused(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    write_json(tmp_path / "1" / "gain.json", {"arm": {"name": "gain"}, "right": [1]})
    with pytest.raises(ConfigError, match="gain.json: no result of this version of the tunnel; give another --out"):
        read_cell(tmp_path)
    with pytest.raises(ConfigError, match="holds no results; run steprag tunnel without --jobs 0 first"):
        write(tmp_path / "1", "steprag tunnel")


def no_reward(tree: Tree, grammar: Grammar) -> Rewards:
    """A reward of one's own: longer searches are better."""
    del grammar
    return [Estimate(len(node.text) / 200, 0.0, "mine") for node in tree.nodes]


def test_any_label_of_pairs_is_a_label_here() -> None:
    world = FactWorld(8)
    grown = tree_of(world, world.questions(3)[2], CAREFUL)
    forest = Forest(world, [grown], start_of("middle"))
    for name, last in ((f"{__name__}:no_reward", len(grown.nodes[-2].text) / 200), ("gold", 1), ("cover", 1)):
        (told,) = named_label(name)(forest)
        assert told[-2] is not None
        assert told[-2].value == last


async def my_search(tree: SearchTree, searcher: Searcher) -> Tree:
    """A search of one's own."""
    return await flat(tree, searcher)


@pytest.mark.engine
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    argv = ["tunnel", "--quick", "--seeds", "2", "--out", str(out), "--arms", "start", "outcomes", "marked facts"]
    argv += ["--reward", "tests.test_tunnel:no_reward", "--search", "tests.test_tunnel:my_search", "--jobs", "2"]
    assert main(argv) == 0
    page = (out / "report.md").read_text()
    assert page == capsys.readouterr().out.removesuffix("\n")
    for arm in ("own reward", "own reward, own search", "outcomes, own search", "marked facts, own search"):
        assert f"| {arm} |" in page
    assert "judge no goal" in page
    assert "reached" not in page
    assert (out / "hops.png").stat().st_size > 5000
    files = {path: path.stat().st_mtime_ns for path in out.rglob("*.json")}
    assert len(files) == 2 * 7
    assert len(json.loads(next(iter(files)).read_text())["right"]) == 60
    assert main(argv) == 0  # what is finished is not done again
    assert main([*argv, "--jobs", "0"]) == 0
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.json")} == files


@pytest.mark.slow
def test_rates_are_chosen_by_validation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from apps.tunnel import arms

    small = replace(arms.MAIN, questions=6, calls=16, steps=4, tests=12)
    world = replace(arms.WORLDS["facts"], cells=(small,), rates_cell=replace(small, name="rates", test_world=78))
    monkeypatch.setitem(arms.WORLDS, "facts", world)
    argv = ["tunnel", "--rates", "--seeds", "1", "--jobs", "1", "--out", str(tmp_path), "--arms", "outcomes"]
    assert main(argv) == 0
    rate = json.loads((tmp_path / "rates.json").read_text())["outcomes"]
    assert rate in RATES
    assert json.loads((tmp_path / "1-to-6-hops" / "1" / "outcomes.json").read_text())["rate"] == rate
    assert "| outcomes |" in capsys.readouterr().out.partition("## Learning rates")[2]


@pytest.mark.parametrize(("option", "said"), [
    (["--arms", "outcome"], "unknown arm 'outcome'; known: start"), (["--cells", "x"], "unknown cell 'x'"),
    (["--cells", "weak start", "--arms", "GRPO, states"], "cell 'weak start': GRPO's arms have one start"),
    (["--seeds", "0"], "--seeds is 1 or more"), (["--jobs", "-1"], "--jobs is 0 or more"),
    (["--search", "tests.test_tunnel:nothing"], "--search: tests.test_tunnel:nothing cannot be imported"),
    (["--reward", "tests.test_tunnel:nothing"], "module 'tests.test_tunnel' has no attribute 'nothing'"),
    (["--reward", "tests.test_tunnel"], "--reward: 'tests.test_tunnel' should be module:function"),
    (["--reward", "spree"], "or a label of steprag pairs; did you mean 'spre'?"),
    (["--reward", ":nothing"], "--reward: :nothing cannot be imported"),
])  # fmt: skip
def test_wrong_options(option: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tunnel", "--out", str(tmp_path), *option]) == 2
    assert said in capsys.readouterr().err
