"""The village: what its pages say, its right way to the answer, and what labels see of it."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import aclosing
from pathlib import Path

import pytest

from apps.commands import main
from apps.tunnel.arms import WORLDS
from apps.tunnel.model import END, start_of, write_folder
from apps.tunnel.policy import BatchedPolicy
from apps.tunnel.report import verdict, write
from apps.tunnel.statistics import PairedDifference
from apps.tunnel.village import NAMES, PRONOUNS, SHOWN, Village, VillageHop, environment_over, parts_of
from apps.tunnel.village_unit import STARTS, worked_tree
from apps.tunnel.village_words import HELD, PHRASINGS, UNSEEN, VILLAGE
from benchmarks.village_start import School, is_right, rows_of
from data_generation.growth import finished
from indexes import open_retriever
from preference.labels.gold import gold
from steprag.agent.facts import facts_about, supported
from steprag.agent.grammars import TRANSCRIPT
from steprag.engines.tokens import prompt_tokens, reply_tokens
from steprag.records.jsonl import write_json
from steprag.tree import Tree
from steprag.types import Question


@pytest.fixture(scope="module", params=["text", "list"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Village, Path]:
    world = Village(3, request.param, fresh=True, unseen=True)
    return world, world.build(tmp_path_factory.mktemp(request.param))


def test_names_and_phrasings_of_the_test_are_held_out() -> None:
    shown, held = Village(1), Village(1, fresh=True, unseen=True)
    surnames = [{one.name.split()[1] for one in world.persons} for world in (shown, held, School(1))]
    assert [len(some & HELD) for some in surnames] == [0, 64, 0]
    told = [re.escape(phrasing).replace(r"\ ", " ") for phrasing in PHRASINGS]
    forms = [re.compile(re.sub(r"\\{\w+\\}", r"[\\w' ]+?", one), re.IGNORECASE) for one in told]

    def used(world: Village, some: list[re.Pattern[str]]) -> int:
        facts = [world.page(person, name)[1].partition(" ")[2] for person in world.persons[:24] for name in NAMES]
        return sum(any(form.fullmatch(fact) for fact in facts) for form in some)

    assert [used(shown, forms[:UNSEEN]), used(shown, forms[UNSEEN:]), used(held, forms[UNSEEN:])] == [16, 0, 8]
    assert len(PHRASINGS) == 24
    assert len(NAMES) == 16


def test_a_page_states_its_fact_once_among_other_sentences() -> None:
    world, pages = Village(2), []
    for person in world.persons:
        for name in NAMES:
            page, fact = world.page(person, name)
            assert 3 <= page.text.count(".") <= 5
            assert page.text.count(fact) == 1
            assert page.text.count(name) >= 2  # of a stranger too
            pages.append(person.name in fact)
    assert pages.count(False) / len(pages) == pytest.approx(PRONOUNS, abs=0.05)
    assert world.page(world.persons[0], "boss") == Village(2).page(world.persons[0], "boss")


def test_a_question_says_its_way() -> None:
    world = Village(5)
    for asked in world.questions(24):
        person, relations = parts_of(asked.question)
        chain = world.chain(asked)
        assert len(relations) == len(chain) == asked.metadata["hops"]
        assert chain[0].query == f"{relations[0]} of {person}"
        assert (chain[-1].person,) == asked.golden_answers
        assert [hop.page for hop in chain] == asked.metadata["supporting_ids"]


async def played(world: Village, index: Path, asked: Question, hops: list[VillageHop]) -> Tree:
    """The episode that takes these hops, as a tree of one branch."""
    async with aclosing(open_retriever(index)) as retriever:
        return finished(await worked_tree(environment_over(retriever), asked, hops), "closed")


def test_the_right_query_finds_its_page_and_the_right_way_its_answer(built: tuple[Village, Path]) -> None:
    world, index = built

    async def found() -> list[bool]:
        async with aclosing(open_retriever(index)) as retriever:
            hops = [hop for asked in world.questions(60) for hop in world.chain(asked)]
            return [hop.page in {page.id for page in await retriever.search(hop.query, SHOWN)} for hop in hops]

    told = asyncio.run(found())
    assert sum(told) >= 0.98 * len(told)
    for asked in world.questions(9):
        tree = asyncio.run(played(world, index, asked, world.chain(asked)))
        assert tree.nodes[-1].prediction_f1 == 1
        assert all(world.right_steps(tree))
        facts = facts_about(tree, TRANSCRIPT)
        shares = [value.value for value in gold(facts) if value]
        assert shares == [step / asked.metadata["hops"] for step in range(1, asked.metadata["hops"] + 1) for _ in "qe"]
        assert supported(facts)[-1]


def test_the_world_and_the_marks_see_the_same_wrong_step(built: tuple[Village, Path]) -> None:
    world, index = built
    asked = world.questions(2)[1]
    first, second = world.chain(asked)
    stays = world.hop(parts_of(asked.question)[0], second.query.split()[0])
    tree = asyncio.run(played(world, index, asked, [first, stays]))
    assert world.right_steps(tree) == [True, True, True, False, False, False]
    assert [value.value if value else None for value in gold(facts_about(tree, TRANSCRIPT))][1:5] == [0.5] * 4


def test_a_start_reads_what_it_never_saw(tmp_path: Path) -> None:
    policy = BatchedPolicy(start_of("reader", STARTS), 0.0, VILLAGE)

    async def right(world: Village) -> list[bool]:
        rows = await rows_of(world, tmp_path / world.told, 20)
        said = await asyncio.gather(*(policy.sample(row.prompt, (), n=1, seed=0) for row in rows))
        return [is_right(one.completions[0], row) for one, row in zip(said, rows, strict=True)]

    for told in ("list", "text"):
        shares = asyncio.run(right(Village(8, told, fresh=True, unseen=True)))
        assert sum(shares) >= 0.85 * len(shares)


def test_the_trainers_tokens_are_the_policys(built: tuple[Village, Path], tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    write_folder(start_of("high", STARTS), tmp_path, VILLAGE)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=False)
    world, index = built
    for row in asyncio.run(rows_of(world, index.parent, 6)):
        assert prompt_tokens(row.prompt, tokenizer) == VILLAGE.prompt(row.prompt)
        told = VILLAGE.encode(row.completion[0]["content"])
        assert reply_tokens(row.prompt, row.completion[0], tokenizer) == [*told, END]
    texts = [f"{page.title} {page.text}" for page in world.corpus()]
    assert [VILLAGE.decode(VILLAGE.encode(text)) for text in texts] == texts


@pytest.mark.parametrize(
    ("mean", "low", "high", "said"),
    [(6, 1, 11, "shown"), (6, -1, 13, "open"), (3, -1, 7, "open"), (4, 1, 7, "open"), (1, -2, 4.9, "opposite")],
)
def test_a_verdict_needs_its_interval(mean: float, low: float, high: float, said: str) -> None:
    assert verdict(PairedDifference(mean, low, high, (low, high), 0.5, (mean,))) == said


def test_the_page_sets_what_was_found_beside_what_was_expected(tmp_path: Path) -> None:
    cell, shares = WORLDS["village"].cells[2], {"outcomes": (100, 110), "chained match": (105, 105)}
    shares["marked facts, as many pairs"] = (180, 192)
    for arm, by_seed in shares.items():
        for seed, right in enumerate(by_seed, 1):
            told = {"cell": cell.name, "arm": arm, "rate": 1e-4, "seconds": 1.0, "hops": [1, 2] * (cell.tests // 2),
                    "right": [int(number < right) for number in range(cell.tests)]}  # fmt: skip
            (folder := tmp_path / "cell" / str(seed)).mkdir(parents=True, exist_ok=True)
            write_json(folder / f"{arm}.json", told)
    page = write(tmp_path, "steprag tunnel").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.endswith("|") and "| shown |" in line]
    assert [(row.split(" | ")[1], row.split(" | ")[-1]) for row in rows] == [
        ("chained match", "open |"), ("marked facts, as many pairs", "shown |")]  # fmt: skip
    assert (tmp_path / "cells.png").read_bytes().startswith(b"\x89PNG")


def test_a_cell_runs_from_start_to_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    cells = ["village: list, high support", "village: text, low support, worked"]
    argv = ["tunnel", "--world", "village", "--quick", "--seeds", "1", "--jobs", "1", "--out", str(out)]
    argv += ["--cells", *cells, "--arms", "start", "marked facts"]
    assert main(argv) == 0
    said = capsys.readouterr()
    assert said.err.count("of open states have a right step") == 2
    assert all(f"## {cell}" in said.out for cell in cells)
    cured = json.loads((out / "village-text-low-support-worked" / "1" / "marked-facts.json").read_text())
    assert sum(cured["pairs"]["all"]) > 0
    assert len(cured["right"]) == 6
    assert main(argv) == 0  # what is finished is not done again
    assert "of open states" not in capsys.readouterr().err
