"""`steprag index calibrate`: the threshold of `auto`, and how well it tells what an index can answer.

Each question is asked twice: of the index as it is, and of the index without the subjects of its supporting passages.
The first should stay with the index, the second should go to the web.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from indexes.evaluate import SUPPORT, Judged, read_judged
from indexes.manifest import read_index_manifest
from indexes.retrieval.open import open_retriever
from indexes.web.ranking import EncoderRanker, Ranker
from indexes.web.sources import alike
from steprag.agent.retriever import Retriever
from steprag.cli import guarded
from steprag.config import StageConfig, add_options, config_from, parse_arguments
from steprag.errors import DataError, quoted
from steprag.files import existing
from steprag.inputs import read_passages
from steprag.sections import Positive, RetrieverConfig
from steprag.stats import share_interval

SPARE = 100
"""Passages that are looked at for a question, so that enough are left without its subjects."""
_WORD = re.compile(r"\w+")
Words = tuple[str, ...]


class CalibrateConfig(StageConfig):
    retriever: RetrieverConfig = RetrieverConfig()
    encoder: str | None = Field(default=None, description="what compares; none: the index's, or minilm")
    top_k: Positive = Field(default=3, description="passages of which the likest counts, as the agent asks for")
    limit: Positive | None = Field(default=None, description="use the first so many questions of a file only")


@dataclass(frozen=True)
class Likeness:
    """How like a question its best passage is: with the subjects of its supporting passages there, and without."""

    inside: np.ndarray
    outside: np.ndarray


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag index calibrate", description="The threshold of `web.source: auto`.")
    parser.add_argument("--index", required=True, metavar="DIR|URL", help="index folder, or a service's URL")
    parser.add_argument("--corpus", required=True, metavar="FILE", help="the corpus that the index was built from")
    parser.add_argument(
        "--questions", required=True, metavar="FILE", help=f"choose the threshold; with metadata.{SUPPORT}"
    )
    parser.add_argument("--test", metavar="FILE", help="other questions, on which the threshold is tried")
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    add_options(parser, CalibrateConfig)
    given = parse_arguments(parser, argv)
    config = config_from(CalibrateConfig, given)
    files = {"questions": given.questions, **({"test": given.test} if given.test else {})}
    asked = {name: read_judged(existing(path, "question file"))[: config.limit] for name, path in files.items()}
    titles = {passage.id: passage.title for passage in read_passages(existing(given.corpus, "corpus"))}
    for name, judged in asked.items():
        _check_support(judged, titles, Path(files[name]))
    manifest = None if "://" in given.index else read_index_manifest(existing(given.index, "index folder"))
    ranker = EncoderRanker(config.encoder, manifest)
    retriever = open_retriever(given.index, config.retriever)
    found = asyncio.run(_measured(retriever, ranker, asked, titles, config.top_k))
    figures = report(found)
    sys.stdout.write(json.dumps(figures, indent=2) + "\n" if given.json else table(figures))
    return 0


def _check_support(judged: Sequence[Judged], titles: Mapping[str, str], path: Path) -> None:
    for one in judged:
        if missing := sorted(one.support - titles.keys()):
            problem = f"metadata.{SUPPORT} names {quoted(missing[0])}, which the corpus lacks"
            raise DataError(path, problem, remedy="give the corpus that the questions are about")


async def _measured(
    retriever: Retriever, ranker: Ranker, asked: Mapping[str, Sequence[Judged]], titles: Mapping[str, str], top_k: int
) -> dict[str, Likeness]:
    async with aclosing(retriever), aclosing(ranker):
        return {name: await likeness(retriever, ranker, judged, titles, top_k) for name, judged in asked.items()}


async def likeness(
    retriever: Retriever, ranker: Ranker, judged: Sequence[Judged], titles: Mapping[str, str], top_k: int
) -> Likeness:
    """Of each question, in order. The index without a subject: its ranking without passages whose title names it."""
    known = {words(title) for title in titles.values()}
    found = await asyncio.gather(*(retriever.search(one.question, top_k + SPARE) for one in judged))
    inside, outside = [], []
    for one, passages in zip(judged, found, strict=True):
        gone = [subject(words(titles[name]), known) for name in one.support]
        kept = tuple(p for p in passages if not any(stands_in(words(p.title), each) for each in gone))
        inside.append(await alike(ranker, one.question, passages[:top_k]))
        outside.append(await alike(ranker, one.question, kept[:top_k]))
    return Likeness(np.array(inside), np.array(outside))


def words(title: str) -> Words:
    """A title's words, lower case."""
    return tuple(_WORD.findall(title.lower()))


def subject(title: Words, known: set[Words]) -> Words:
    """What a passage is about: the shortest title of the corpus that stands in its own ("Money in Brunei": Brunei)."""
    for length in range(1, len(title)):
        for start in range(len(title) - length + 1):
            if title[start : start + length] in known:
                return title[start : start + length]
    return title


def stands_in(title: Words, part: Words) -> bool:
    """Whether `part` is a run of words of `title`."""
    return any(title[start : start + len(part)] == part for start in range(len(title) - len(part) + 1))


def report(found: Mapping[str, Likeness]) -> dict[str, Any]:
    """The threshold that the first file's questions give, and what it does on each file."""
    threshold = best_threshold(next(iter(found.values())))
    return {"threshold": threshold, **{name: _figures(one, threshold) for name, one in found.items()}}


def best_threshold(found: Likeness) -> float:
    """In hundredths, with the best mean of both shares that are told rightly; of equal ones the lowest."""
    steps = np.arange(-100, 101) / 100
    right = [(found.inside >= step).mean() + (found.outside < step).mean() for step in steps]
    return float(steps[int(np.argmax(right))])


def auc(found: Likeness) -> tuple[float, float, float]:
    """Area under the ROC curve with its 95 % interval (Hanley and McNeil, Radiology 1982): how often a question that
    the index can answer is more like its best passage than one that it cannot. Both kinds come of the same questions,
    which the formula does not know: the interval is rather too wide.
    """
    inside, outside = found.inside[:, None], found.outside[None, :]
    area = float((inside > outside).mean() + 0.5 * (inside == outside).mean())
    several, squared = area / (2 - area), area**2
    spread = area * (1 - area) + (len(inside) - 1) * (several - squared)
    spread += (outside.size - 1) * (2 * squared / (1 + area) - squared)
    half = 1.96 * float(np.sqrt(spread / (len(inside) * outside.size)))
    return area, max(0.0, area - half), min(1.0, area + half)


def _figures(found: Likeness, threshold: float) -> dict[str, Any]:
    count = len(found.inside)
    kept, sent = int((found.inside >= threshold).sum()), int((found.outside < threshold).sum())
    return {
        "questions": count,
        "auc": [round(value, 3) for value in auc(found)],
        "index_where_it_can": [round(value, 3) for value in (kept / count, *share_interval(kept, count))],
        "web_where_it_cannot": [round(value, 3) for value in (sent / count, *share_interval(sent, count))],
    }


def table(figures: Mapping[str, Any]) -> str:
    """The figures to read: each with its 95 % interval."""
    lines = [f"web.threshold: {figures['threshold']:.2f}"]
    for name, each in figures.items():
        if isinstance(each, dict):
            lines.append(f"{name}: {each['questions']} questions, with and without their subjects in the index")
            for key in ("auc", "index_where_it_can", "web_where_it_cannot"):
                value, low, high = each[key]
                lines.append(f"  {key.replace('_', ' '):<20} {value:.3f}  ({low:.3f} to {high:.3f})")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
