"""Two tasks for an agent that has to manage what it remembers: Ledger asks many things at once, Forks leads astray.

Both lean on Atlas' corpus and keep to its splits. A worked episode is written once, as the readings that it takes; the
words of each grammar are put to them later (`apps/reproduce/stack_arms.py`).
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from benchmarks.atlas.forks import Fork, forks
from benchmarks.atlas.model import AtlasWorld, pick
from benchmarks.atlas.questions import QuestionRow, one_hop
from benchmarks.atlas.splits import DULL, SEED
from steprag.atlas import Reading

Row = dict[str, object]
LEDGER_TRAIN = {1: 50, 2: 50, 3: 50}
"""Ledgers to learn from, by the number of their parts."""
LEDGER_DEV = {2: 20, 3: 20, 4: 20}
LEDGER_TEST = {2: 100, 4: 100, 8: 100}
FORKS = {"train": 150, "dev": 60, "test": 260}
MISSES = 6
"""One search in so many fails at first and is asked anew."""
TEACHERS = ("warmstart", "train")
"""The splits of Atlas that worked episodes come from; dev and test come from their namesakes."""


def task_files(world: AtlasWorld, split_of: Mapping[str, str]) -> Iterator[tuple[str, list[Row]]]:
    """The files of both tasks, by name: questions of dev and test, worked episodes to learn from and to be tried on."""
    ones = _by_home(world, split_of)
    found = _forks_by_home(world, split_of)
    for split, ledgers in (("dev", LEDGER_DEV), ("test", LEDGER_TEST)):
        yield (
            f"ledger.{split}",
            [_ledger_row(split, *one) for one in enumerate(_ledgers(ones[split], ledgers, split), 1)],
        )
        picked = list(islice((fork for fork in found[split] if fork.decoys), FORKS[split]))
        yield f"forks.{split}", [_fork_row(split, *one) for one in enumerate(picked, 1)]
    teachers = [one for split in TEACHERS for one in ones[split]]
    learnt = list(islice((fork for split in TEACHERS for fork in found[split]), FORKS["train"]))
    yield "worked.train", _worked("train", _ledgers(teachers, LEDGER_TRAIN, "train"), learnt)
    held_out = list(islice(found["dev"], FORKS["dev"]))
    yield "worked.dev", _worked("dev", _ledgers(ones["dev"], LEDGER_DEV, "dev"), held_out)


def _by_home(world: AtlasWorld, split_of: Mapping[str, str]) -> dict[str, list[QuestionRow]]:
    homes: dict[str, list[QuestionRow]] = {split: [] for split in ("train", "dev", "test", "warmstart")}
    for question in one_hop(world):
        if question.relations[0] not in DULL:
            homes[split_of[next(iter(question.groups))]].append(question)
    return homes


def _forks_by_home(world: AtlasWorld, split_of: Mapping[str, str]) -> dict[str, list[Fork]]:
    """The forks by the split of the country that they ask about, in an order of their own."""
    homes: dict[str, list[Fork]] = {split: [] for split in ("train", "dev", "test", "warmstart")}
    for fork in forks(world):
        homes[split_of[fork.group]].append(fork)
    for split, found in homes.items():
        random.Random(f"{SEED}-forks-{split}").shuffle(found)
    return homes


def _ledgers(
    questions: Sequence[QuestionRow], sizes: Mapping[int, int], name: str
) -> Iterator[tuple[QuestionRow, ...]]:
    """Sets of one-hop questions, each set about different things with different answers; relations take turns."""
    rng = random.Random(f"{SEED}-ledger-{name}")
    by_relation: dict[str, list[QuestionRow]] = {}
    for question in questions:
        by_relation.setdefault(question.relations[0], []).append(question)
    relations = sorted(by_relation)
    for size, count in sizes.items():
        for _ in range(count):
            yield _set_of(size, by_relation, relations, rng)


def _set_of(
    size: int, by_relation: Mapping[str, Sequence[QuestionRow]], relations: Sequence[str], rng: random.Random
) -> tuple[QuestionRow, ...]:
    found: list[QuestionRow] = []
    while len(found) < size:
        question = rng.choice(by_relation[rng.choice(relations)])
        new = all(question.groups.isdisjoint(one.groups) for one in found)
        if new and question.answers[0] not in {one.answers[0] for one in found}:
            found.append(question)
    return tuple(found)


def ledger_text(parts: Sequence[QuestionRow]) -> str:
    """The question that asks all parts."""
    if len(parts) == 1:
        return parts[0].text
    return "Answer each: " + " ".join(f"({number}) {part.text}" for number, part in enumerate(parts, 1))


def _ledger_row(split: str, order: int, parts: Sequence[QuestionRow]) -> Row:
    return {
        "id": f"ledger-{split}-{order:04d}",
        "question": ledger_text(parts),
        "golden_answers": ["; ".join(part.answers[0] for part in parts)],
        "metadata": {
            "type": f"ledger-{len(parts)}",
            "parts": [list(part.answers) for part in parts],
            "supporting_ids": [str(row) for part in parts for row in part.rows],
        },
    }


def _fork_row(split: str, order: int, fork: Fork) -> Row:
    return {
        "id": f"forks-{split}-{order:04d}",
        "question": fork.text,
        "golden_answers": list(fork.answers),
        "metadata": {
            "type": f"fork-{len(fork.decoys)}",
            "relations": [fork.condition, fork.asked],
            "supporting_ids": [str(fork.list_row), str(fork.check.row)],
            "decoys": [decoy.name for decoy in fork.decoys],
        },
    }


def _worked(split: str, ledgers: Iterable[tuple[QuestionRow, ...]], found: Iterable[Fork]) -> list[Row]:
    """Worked episodes of both tasks, in turns."""
    rows = [
        {**_ledger_row(split, order, parts), "readings": _ledger_readings(parts)}
        for order, parts in enumerate(ledgers, 1)
    ]
    rows += [{**_fork_row(split, order, fork), "readings": fork_readings(fork)} for order, fork in enumerate(found, 1)]
    for row in rows:
        row["readings"] = [vars(reading) for reading in row["readings"]]  # type: ignore[union-attr]
    random.Random(f"{SEED}-worked-{split}").shuffle(rows)
    return rows


def _ledger_readings(parts: Sequence[QuestionRow]) -> list[Reading]:
    readings: list[Reading] = []
    for number, part in enumerate(parts, 1):
        (hop,) = part.hops
        query = pick(hop.queries, part.text)
        kept = Reading(hop.need, query, True, hop.evidence, f"{number}: {part.answers[0]}", (str(hop.row),))
        if len(hop.queries) > 1 and pick(range(MISSES), part.text, str(len(parts))) == 0:
            other = hop.queries[(hop.queries.index(query) + 1) % len(hop.queries)]
            readings.append(Reading(hop.need, other, False, f"None of this tells {hop.need}."))
        readings.append(kept)
    return readings


def fork_readings(fork: Fork) -> list[Reading]:
    """The list of neighbours, every decoy that is tried in vain, and the one that is meant."""
    first = Reading(fork.need, fork.query, True, fork.evidence, fork.brief, (str(fork.list_row),))
    tried = [
        Reading(
            decoy.need,
            decoy.query,
            False,
            f"{decoy.need[:1].upper()}{decoy.need[1:]} is {decoy.value}.",
            gold=(str(decoy.row),),
        )
        for decoy in fork.decoys
    ]
    last = replace(first, need=fork.check.need, query=fork.check.query, text=fork.told, brief=fork.found,
                   gold=(str(fork.check.row),))  # fmt: skip
    return [first, *tried, last]
