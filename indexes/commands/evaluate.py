"""`steprag index evaluate`: how much of what supports an answer a retriever finds for the bare question."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from indexes import open_retriever
from steprag.agent.retriever import PLACES, Retriever
from steprag.batch.datasets import add_question_options, questions_given
from steprag.config.load import StageConfig, add_options, config_from, parse_arguments
from steprag.config.recipes import NEWEST, index_of
from steprag.config.sections import Positive, RetrieverConfig
from steprag.errors import DataError, counted
from steprag.records.inputs import question_from_row
from steprag.records.left_out import LeftOut, say_left_out
from steprag.records.rows import read_any_rows
from steprag.scores.stats import mean_interval

SUPPORT = "supporting_ids"


class EvaluateConfig(StageConfig):
    names_index: ClassVar[bool] = True

    retriever: RetrieverConfig = Field(default_factory=RetrieverConfig)
    at: list[Positive] = Field(default=[2, 5, 20], description="the k of recall@k")
    limit: Positive | None = Field(default=None, description="use the first so many questions only")


@dataclass(frozen=True)
class Judged:
    """A question whose supporting passages are known, by id."""

    question: str
    support: frozenset[str]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag index evaluate", description=f"Recall against metadata.{SUPPORT}.")
    parser.add_argument("--index", metavar="INDEX", help=f"{PLACES} [{NEWEST}]")
    add_question_options(parser, required=True, of=f" with metadata.{SUPPORT}")
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    add_options(parser, EvaluateConfig)
    arguments = parse_arguments(parser, argv)
    config = config_from(EvaluateConfig, arguments)
    judged = read_judged(questions_given(arguments))[: config.limit]
    retriever = open_retriever(index_of(arguments), config.retriever)
    figures = asyncio.run(evaluate(retriever, judged, config.at))
    sys.stdout.write(json.dumps(figures, indent=2) + "\n" if arguments.json else table(figures))
    return 0


def read_judged(path: Path) -> list[Judged]:
    """The questions of a file whose `metadata.supporting_ids` names passages. Raises DataError where none does."""
    judged: list[Judged] = []
    gone: list[LeftOut] = []
    for number, row in read_any_rows(path, gone):
        question = question_from_row(row, path, number)
        support = question.metadata.get(SUPPORT) or []
        if not isinstance(support, list):
            raise DataError(path, f"metadata.{SUPPORT} is no list", line=number)
        if support:
            judged.append(Judged(question.question, frozenset(map(str, support))))
    say_left_out(gone)
    if not judged:
        raise DataError(path, f"no question names its passages in metadata.{SUPPORT}")
    return judged


async def evaluate(retriever: Retriever, judged: Sequence[Judged], at: Sequence[int]) -> dict[str, Any]:
    """Recall@k over the questions for each k in `at`, in percent. Closes the retriever.

    recall: the mean share of a question's supporting passages among the first k, with its 95 % interval; any, all: how
    many questions have at least one, or every one, of them there.
    """
    async with aclosing(retriever):
        found = await asyncio.gather(*(retriever.search(one.question, max(at)) for one in judged))
    figures: dict[str, Any] = {"questions": len(judged), "fingerprint": retriever.fingerprint}
    for k in at:
        shares = [len(one.support & {p.id for p in passages[:k]}) / len(one.support)
                  for one, passages in zip(judged, found, strict=True)]  # fmt: skip
        low, high = mean_interval(shares)
        figures[f"@{k}"] = {
            "recall": _percent(shares),
            "interval": [round(100 * low, 1), round(100 * high, 1)],
            "any": _percent([float(share > 0) for share in shares]),
            "all": _percent([float(share == 1) for share in shares]),
        }
    return figures


def _percent(values: Sequence[float]) -> float:
    return round(100 * sum(values) / len(values), 1)


def table(figures: dict[str, Any]) -> str:
    """The figures to read."""
    lines = [f"{counted(figures['questions'], 'question')}", "       recall   95 % interval   any     all"]
    for key, at in figures.items():
        if key.startswith("@"):
            low, high = at["interval"]
            lines.append(
                f"{key:<5} {at['recall']:>7.1f}   {low:>5.1f} to {high:<5.1f}  {at['any']:>5.1f}   {at['all']:>5.1f}"
            )
    return "\n".join(lines) + "\n"
