"""Which passages string match and chained match put first: marked ones over others, among those that a question finds.

    steprag index build --corpus hotpotqa_corpus.jsonl --encoder none --out INDEX
    python -m benchmarks.label_passages --questions hotpotqa.jsonl … --index INDEX

No policy plays. A question's pool is what a search for it finds (5), and what searches for it with the titles of the
first three find (3 each). Each marked passage is compared with each other one of the pool: right where the label is
higher, wrong where it is lower; level ones are not counted. "First hops": marked passages without the golden answer,
which string match cannot see. A passage that nobody marked may help all the same, so "wrong" is an upper bound.
Questions whose answer can be guessed, or without marks, are left out. Intervals: 95 %, bootstrap over questions.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

from benchmarks.label_accuracy import interval
from indexes import open_retriever
from preference.chained import NAMED, AnswerSearches, leading_names
from steprag.agent.retriever import Retriever
from steprag.records.inputs import read_questions
from steprag.scores.gold import gold_of, holds_golden, mentions
from steprag.scores.metrics import guessable
from steprag.tree import Node, Tree
from steprag.types import Passage, Question, Usage

LABELS = ("string match", "chained match", "chained match, answer search")


async def pool_of(question: Question, retriever: Retriever) -> list[Passage]:
    """What an agent might see: two searches deep."""
    first = await retriever.search(question.question, 5)
    more = [await retriever.search(f"{question.question} {passage.title}", 3) for passage in first[:3]]
    return list({passage.id: passage for some in (first, *more) for passage in some}.values())


def worth(label: str, question: Question, pool: list[Passage], found: Sequence[Passage]) -> dict[str, float]:
    """The label's value of every passage of the pool, by id."""
    met = {one.id: float(holds_golden(one.text, question.golden_answers)) for one in pool}
    if label == LABELS[0]:
        return met
    texts: dict[str, str] = defaultdict(str)
    for one in pool:
        texts[one.title] += f"{one.text}\n"
    tree = Tree(1, question, "done", Usage(), (Node(0, None, 0),))
    names = leading_names(tree, texts, found if label == LABELS[2] else ())
    return {one.id: met[one.id] or NAMED * any(mentions(f"{one.title}\n{one.text}", names)) for one in pool}


def orders(worth: dict[str, float], marked: set[str], which: set[str]) -> tuple[int, int]:
    """(right, decided) of the passages of `which` against those that are not marked."""
    gaps = [worth[one] - worth[other] for one in which for other in worth.keys() - marked]
    return sum(gap > 0 for gap in gaps), sum(gap != 0 for gap in gaps)


async def measure(files: list[Path], index: str) -> list[str]:
    counts: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    asked = [question for file in files for question in read_questions(file)]
    async with aclosing(open_retriever(index)) as retriever:
        await retriever.ready()
        for question in asked:
            gold = gold_of(question)
            if gold is None or guessable(question.question, question.golden_answers):
                continue
            pool = await pool_of(question, retriever)
            (found,) = await AnswerSearches(retriever).found([Tree(1, question, "", Usage(), (Node(0, None, 0),))])
            marked = {one.id for one in pool if gold.matches(one)}
            first = {one.id for one in pool if one.id in marked and not holds_golden(one.text, question.golden_answers)}
            for label in LABELS:
                values = worth(label, question, pool, found)
                for which, some in (("all", marked), ("first hops", first)):
                    counts[label, which].append(orders(values, marked, some))
    lines = [f"{len(counts[LABELS[0], 'all'])} questions", "", "| label | passages | right, wrong |", "|---|---|---|"]
    for (label, which), some in counts.items():
        right, decided = (sum(column) for column in zip(*some, strict=True))
        low, high = interval(some) or (0.0, 1.0)
        share = f": {100 * right / decided:.0f} % ({100 * low:.0f} to {100 * high:.0f})" if decided else ""
        lines.append(f"| {label} | {which} | {right}, {decided - right}{share} |")
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--questions", nargs="+", type=Path, required=True, metavar="FILE")
    parser.add_argument("--index", required=True, help="an index over the questions' corpus")
    given = parser.parse_args(argv)
    sys.stdout.write("\n".join(asyncio.run(measure(given.questions, given.index))) + "\n")


if __name__ == "__main__":
    main()
