"""Atlas, the embedded world: its files keep their promises."""

import asyncio
import hashlib
import json
import random
import re
import shutil
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from apps.commands import main
from data_generation.worked import WorkedEpisode, WorkedStep, replay
from preference.build import read_trees
from steprag import atlas
from steprag.agent.environment import Environment
from steprag.agent.profiles import load_profile
from steprag.engines.models import GGUF_SHA256, shipped_adapters
from steprag.records.inputs import read_questions
from steprag.runs.run import read_manifest
from steprag.scores.gold import facts_of
from steprag.scores.metrics import guessable, normalise
from steprag.types import Passage
from tests.fakes import BY_ROLLOUTS, DictRetriever, answer, evidence, query

Row = dict[str, Any]
QUESTIONS = ("train", "dev", "test", "warmstart")
GRAMMAR = {
    "query": re.compile(r"\S.*\. So the next query is <query> (\S.*\S) </query>"),
    "evidence": re.compile(r"Based on the query, the relevant evidence is <evidence> (\S.*\S) </evidence>"),
    "answer": re.compile(r"\S.*\. So the answer is <answer> (\S|\S.*\S) </answer>"),
}


@cache
def rows(name: str) -> list[Row]:
    return [json.loads(line) for line in atlas.path(name).read_text(encoding="utf-8").splitlines()]


def title_and_text(row: Row) -> tuple[str, str]:
    title, text = row["contents"].split("\n", 1)
    return title.strip('"'), text


def gold(question: Row) -> list[tuple[str, str]]:
    return [title_and_text(rows("corpus")[int(row)]) for row in question["metadata"]["supporting_ids"]]


def all_questions() -> list[Row]:
    return [question for name in QUESTIONS for question in rows(name)]


def test_atlas_is_as_large_as_promised_and_small_enough_to_ship() -> None:
    least = {"corpus": 1500, "train": 420, "dev": 150, "test": 220, "warmstart": 200}
    assert all(len(rows(name)) >= count for name, count in least.items())
    assert (len(rows("dev")), len(rows("warmstart")) <= 320) == (150, True)
    assert sum(atlas.path(name).stat().st_size for name in atlas.NAMES) < 3_000_000
    for named, unknown in ((atlas.path, "corpse"), (atlas.task, "ledger")):
        with pytest.raises(ValueError, match=f"'{unknown}'"):
            named(unknown)


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_split_mixes_all_types_and_no_answer_dominates(name: str) -> None:
    counts, total = Counter(question["metadata"]["type"] for question in rows(name)), len(rows(name))
    assert set(counts) == {"one-hop", "bridge", "comparison", "yes-no"}
    assert counts["bridge"] > 0.35 * total
    assert min(counts.values()) > 0.12 * total
    answers = Counter(question["golden_answers"][0] for question in rows(name))
    assert abs(answers.pop("yes") - answers.pop("no")) <= 1
    assert max(answers.values()) <= 0.05 * total


def test_passages_are_short_titled_and_distinct_and_their_ids_row_numbers() -> None:
    assert [row["id"] for row in rows("corpus")] == [str(number) for number in range(len(rows("corpus")))]
    texts = []
    for row in rows("corpus"):
        assert re.match(r'"[^"\n]+"\n\S', row["contents"])
        _, text = title_and_text(row)
        assert 12 <= len(text.split()) <= 70, text
        assert "  " not in text
        assert "{" not in text
        assert ".." not in text
        texts.append(text)
    assert len(set(texts)) == len(texts)


def test_questions_are_unique_and_read_cleanly() -> None:
    questions = all_questions()
    assert len({question["id"] for question in questions}) == len(questions)
    assert len({question["question"].casefold() for question in questions}) == len(questions)
    for question in questions:
        text = question["question"]
        assert text[0].isupper()
        assert text[-1] in "?."
        assert not re.search(r"  |\bthe the\b|\bthe an?\b|\ba [aeio]\w|[{}]", text, re.IGNORECASE), text


HOPS = {"one-hop": 1, "bridge": 2, "comparison": 2}


def test_answers_stand_in_a_gold_passage_and_hops_and_gold_passages_agree() -> None:
    """A bridge question names neither its bridge nor its answer."""
    for question in all_questions():
        answer, passages, metadata = question["golden_answers"][0], gold(question), question["metadata"]
        if hops := HOPS.get(metadata["type"]):
            assert metadata["hops"] == len(metadata["supporting_ids"]) == hops
        assert (metadata["bridge"] is not None) == (metadata["type"] == "bridge")
        match metadata["type"]:
            case "comparison":
                assert answer.casefold() in question["question"].casefold()
                assert any(answer.casefold() in title.casefold() for title, _ in passages)
            case "yes-no":
                assert question["golden_answers"] in (["yes"], ["no"])
            case _:
                assert any(answer.casefold() in text.casefold() for _, text in passages), question
        for name in [metadata["bridge"].split(" (")[0], answer] if metadata["bridge"] else []:
            assert not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", question["question"], re.IGNORECASE), question


MORE = re.compile(r"more inhabitants|more people|more ground|larger|bigger|higher|later|more counties")
LESS = re.compile(r"fewer|smaller|lower|first|earlier|older")
NUMBER = {
    "population": r"([\d,]+)(?= inhabitants| people|\b)",
    "area": r"([\d,]+) square kilometres",
    "elevation": r"([\d,]+) feet",
    "counties": r"(\d+) counties",
    "statehood": r"(\d{4})",
    "year": r"(\d{4})",
    "since": r"(\d{4})",
    "number": r"(\d+)",
}


def stated_number(relation: str, text: str) -> int:
    """The number that a comparison turns on, read from the passage alone."""
    if relation == "population":
        text = re.sub(r"(?:\+[\d-]+|[\d.]+°)", "", text)
        return max(int(found.replace(",", "")) for found in re.findall(r"\d[\d,]*", text))
    found = re.search(NUMBER[relation], text)
    assert found, text
    return int(found.group(1).replace(",", ""))


def test_comparisons_follow_from_the_numbers_in_the_gold_passages() -> None:
    for question in all_questions():
        if question["metadata"]["type"] != "comparison":
            continue
        relation = question["metadata"]["relations"][0].split(".")[1]
        numbers = [(stated_number(relation, text), title) for title, text in gold(question)]
        assert bool(MORE.search(question["question"])) != bool(LESS.search(question["question"])), question["question"]
        winner = max(numbers) if MORE.search(question["question"]) else min(numbers)
        assert numbers[0][0] != numbers[1][0]
        assert question["golden_answers"][0].casefold() in winner[1].casefold(), (question, numbers)


def asked_about(name: str) -> set[str]:
    """Gold passages and bridge entities of one split."""
    found: set[str] = set()
    for question in rows(name):
        found.update(f"passage {row}" for row in question["metadata"]["supporting_ids"])
        if question["metadata"]["bridge"]:
            found.add(f"bridge {question['metadata']['bridge']}")
    return found


@pytest.mark.parametrize("seen", ["train", "warmstart", "dev"])
@pytest.mark.parametrize("held_out", ["dev", "test"])
def test_what_is_asked_in_dev_and_test_was_never_asked_before(held_out: str, seen: str) -> None:
    assert held_out == seen or not asked_about(held_out) & asked_about(seen)


def test_worked_episodes_keep_the_published_grammar_and_copy_their_evidence_word_for_word() -> None:
    """They end in the golden answer, and some begin with a miss."""
    misses = 0
    for episode in rows("warmstart"):
        assert re.fullmatch(r"(query evidence )+answer", " ".join(step["action"] for step in episode["steps"]))
        used: set[str] = set()
        for step in episode["steps"]:
            found = GRAMMAR[step["action"]].fullmatch(step["text"])
            assert found, step["text"]
            assert "  " not in step["text"]
            if step["action"] == "evidence" and not step["gold"]:
                assert found.group(1) == "None"
            elif step["action"] == "evidence":
                used.update(step["gold"])
                texts = [title_and_text(rows("corpus")[int(row)])[1] for row in step["gold"]]
                assert any(found.group(1) in text for text in texts), step
        assert used == set(episode["metadata"]["supporting_ids"])
        assert found.group(1) == episode["golden_answers"][0]
        misses += any(step["action"] == "evidence" and not step["gold"] for step in episode["steps"])
    assert 0.08 < misses / len(rows("warmstart")) < 0.25


def test_a_worked_step_sees_all_its_gold_passages() -> None:
    """Found or missed: none goes to make room for another."""
    world = {name: Passage(name, name, f"text of {name}", 1.0) for name in "abcxyz"}

    class Finder(DictRetriever):
        async def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
            return world["x"], world["y"], world["a"]

    steps = (WorkedStep("query", query("a and b")), WorkedStep("evidence", evidence("a, b"), ("a", "b")))
    episode = WorkedEpisode("1", "Which?", ("ab",), (*steps, WorkedStep("answer", answer("ab"))))
    environment = Environment(load_profile("transcript"), Finder(), 3, 7)
    for seed in range(20):
        rows = asyncio.run(replay(episode, world, environment, random.Random(seed)))
        shown = rows[1].prompt[-1]["content"]
        assert [f"text of {name}" in shown for name in "abxy"].count(True) == 3
        assert "text of a" in shown
        assert "text of b" in shown


GEORGIA = {"atlas-test-0271", "atlas-test-0347"}
"""Their first fact is "the country of Georgia", which the passage calls Georgia."""


@pytest.mark.parametrize("name", ["train", "dev", "test"])
def test_the_facts_that_an_answer_needs_stand_in_the_marked_passages(name: str) -> None:
    """A comparison needs both values, a bridge question its bridge and then the answer."""
    for question in read_questions(atlas.path(name)):
        facts = facts_of(question)
        assert [fact.passage for fact in facts] == question.metadata["supporting_ids"], question.id
        for fact in () if question.id in GEORGIA else facts:
            told = f" {normalise(title_and_text(rows('corpus')[int(fact.passage)])[1])} "
            assert fact.held(frozenset({fact.passage}), told), (question.id, fact)
            assert not fact.held(frozenset(), told), "told, but not found"
        if not guessable(question.question, question.golden_answers):
            assert set(facts[-1].anyof) == {(normalise(golden),) for golden in question.golden_answers}, question.id
        if (bridge := question.metadata["bridge"]) and question.id not in GEORGIA:
            said, meant = facts[0].anyof[0][0], normalise(bridge)
            assert said in meant or meant in said, question.id


def test_the_files_are_those_whose_hashes_are_listed() -> None:
    listed = re.findall(r"^\| `(\S+)` \| `([0-9a-f]{64})` \|$", (atlas.DATA / "SOURCES.md").read_text(), re.MULTILINE)
    assert len(listed) == len(atlas.NAMES) + len(atlas.TASKS) + 1
    for name, digest in listed:
        assert hashlib.sha256((atlas.DATA / name).read_bytes()).hexdigest() == digest, name


def test_the_searched_trees_are_of_train_questions_and_give_pairs(tmp_path: Path) -> None:
    trees = [tree for tree, _ in read_trees(atlas.DATA / "trees.jsonl.gz")]
    train = read_questions(atlas.path("train"))
    assert {tree.question.id for tree in trees} == {question.id for question in train[: len(trees)]}
    assert main(["pairs", "--trees", str(atlas.DATA / "trees.jsonl.gz"), "--out", str(tmp_path), *BY_ROLLOUTS]) == 0
    counts = read_manifest(tmp_path)["counts"]
    assert counts["trees"] == 100
    assert counts["pairs.train"] > 400


def test_shipped_adapters_are_small_and_say_how_they_were_made() -> None:
    for name, folder in shipped_adapters().items():
        manifest = read_manifest(folder)
        assert (manifest["stage"], manifest["status"]) == ("train", "done"), name
        assert manifest["base"]["sha256"] == GGUF_SHA256
        # what `ask` and `serve` show it
        assert manifest["prompt"]["profile"] == ("stack" if name == "atlas-stack" else "transcript")
        assert sum(file.stat().st_size for file in folder.iterdir()) <= 10_000_000
        for file in ("manifest.json", "adapter_config.json"):
            assert not re.findall(r'"/[^"]*/', (folder / file).read_text()), f"{folder / file} names a path"


def test_an_agent_is_shipped_with_a_manifest_that_lists_what_is_shipped(tmp_path: Path) -> None:
    trained = tmp_path / "trained"
    shutil.copytree(shipped_adapters()["atlas-warmstart"], trained)
    manifest = json.loads((trained / "manifest.json").read_text())
    manifest["files"]["metrics.jsonl"] = manifest["files"]["adapter_config.json"]
    manifest["config"]["adapter"] = "/home/someone/runs/sft"
    (trained / "manifest.json").write_text(json.dumps(manifest))
    script = Path(__file__).parents[1] / "scripts/ship_agent.sh"
    subprocess.run(["bash", str(script), str(trained), str(tmp_path / "agent")], check=True)
    assert main(["run", "check", str(tmp_path / "agent")]) == 0
    assert read_manifest(tmp_path / "agent")["config"]["adapter"] == "sft"
    assert {*read_manifest(tmp_path / "agent")["files"]} == {"adapter_config.json", "adapter_model.safetensors"}
