"""`steprag adapt questions`: an index to questions whose path through its passages is known, in train, dev and test.

Paths are drawn in rounds until every kind, number of hops and split has its share, or has tried often enough. Calls are
journalled and bounded as everywhere: started again, the run goes on and pays nothing twice.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from indexes import open_retriever
from indexes.rows.passage_store import PassageStore
from inference.config import GreedyConfig
from steprag.agent.retriever import Retriever
from steprag.batch.results import Results
from steprag.batch.worklist import ask_each, model_asked, run_calmly
from steprag.config.load import PASSAGES, StageConfig, add_options, config_from, index_of, parse_arguments
from steprag.config.sections import Positive, RetrieverConfig
from steprag.console.progress import Progress
from steprag.engines.models import EMBEDDED
from steprag.errors import PART_DONE, ConfigError
from steprag.experiments.adapt.asking import MOST_HOPS, PROMPTS, DraftFormat, PolicyWriter, calls_of, use_of
from steprag.experiments.adapt.facts import TemplateWriter
from steprag.experiments.adapt.gates import GATES, MADE, MadeQuestion, QuestionWriter, make
from steprag.experiments.adapt.passages import SPLITS, PassageGraph, PassagePath
from steprag.policy.budget import BudgetConfig
from steprag.policy.protocols import Policy
from steprag.records.jsonl import existing, file_hash, read_records, write_json, write_records
from steprag.runs.run import Run, open_run
from steprag.scores.metrics import normalise
from steprag.types import Passage, Question, Usage

TRAINED = "train.passages.jsonl"
"""The passages of the documents that questions to train on are made from: a corpus."""
TRIES = {True: (1, 1.25), False: (100, 10)}
"""Where the policy writes, and where templates do, which costs nothing: how many times the tries that are given, and
the paths that a round tries for a question that is missing.
"""
ALIKE = 5, 0.5
"""Words in a row, and the share of a passage's such runs from which two passages say the same."""


class WriterConfig(GreedyConfig):
    """The policy as writer and reader of questions: greedy, with room for a draft."""

    max_tokens: Positive = Field(default=512, description="longest completion, in tokens")


class QuestionsConfig(StageConfig):
    """`steprag adapt questions`."""

    names_index: ClassVar[bool] = True

    policy: WriterConfig = WriterConfig()
    retriever: RetrieverConfig = RetrieverConfig()
    budget: BudgetConfig = BudgetConfig()
    writer: Literal["auto", "policy", "templates"] = Field(
        default="auto", description="who writes: the policy, or templates over extracted facts; auto: these where the "
        "policy is the embedded model",
    )  # fmt: skip
    questions: Positive = Field(default=200, description="questions to train on")
    dev: int = Field(default=20, ge=0, description="questions to choose by, of documents of their own")
    tests: Positive = Field(default=100, description="questions to test on, of documents never trained on")
    hops: int = Field(default=3, ge=1, le=MOST_HOPS, description="passages that a question leads through at most")
    tries: Positive = Field(default=4, description="paths that are tried for a question at most")
    seed: int = Field(default=0, description="draws splits and paths")

    @property
    def by_policy(self) -> bool:
        """Whether the policy writes; else templates do."""
        weak = not self.policy.remote and self.policy.model == EMBEDDED
        return self.writer == "policy" or (self.writer == "auto" and not weak)

    @property
    def wanted(self) -> dict[str, int]:
        """Questions by split."""
        return dict(zip(SPLITS, (self.questions, self.dev, self.tests), strict=True))

    def quotas(self) -> dict[tuple[str, int], int]:
        """Questions by split and hops: as many of each, one more of the shortest where they do not divide."""
        return {(split, hops): (count + self.hops - hops) // self.hops
                for split, count in self.wanted.items() for hops in range(1, self.hops + 1)}  # fmt: skip

    def most_use(self, tries: float | None = None) -> Usage:
        """What writing takes at most, or at so many tries a question; nothing where templates write."""
        if not self.by_policy:
            return Usage()
        uses = [(use_of(hops, self.policy.max_tokens), round(count * (tries or self.tries)))
                for (_, hops), count in self.quotas().items()]  # fmt: skip
        return Usage(*(sum(getattr(use, key) * count for use, count in uses) for key in vars(Usage())))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag adapt questions", description="Questions with paths, from an index.")
    parser.add_argument("--index", metavar="INDEX", help="index folder [the newest under runs]")
    parser.add_argument("--out", required=True, metavar="RUN", help="run folder: questions by split, gates.json")
    add_options(parser, QuestionsConfig)
    given = parse_arguments(parser, argv)
    config = config_from(QuestionsConfig, given)
    told, failed = run_calmly(make_questions(config, existing(index_of(given), "index folder"), Path(given.out)))
    sys.stdout.write(shown(told))
    return PART_DONE if failed else 0


async def make_questions(config: QuestionsConfig, index: Path, out: Path) -> tuple[dict[str, Any], int]:
    """Runs the stage; returns what gates.json holds, and how many paths failed. Raises BudgetReached, ConfigError where
    no question passes.
    """
    existing(index / PASSAGES, "passages of the index folder")
    async with aclosing(open_retriever(index, config.retriever)) as retriever:
        identity: dict[str, Any] = {"index": retriever.fingerprint, "prompt": {"hash": file_hash(PROMPTS)[:16]}}
        keys = {"questions", "dev", "tests", "hops", "tries", "seed"}
        identity |= {**config.model_dump(include=keys), "writer": "policy" if config.by_policy else "templates"}
        identity |= {"policy": model_asked(config.policy)} if config.by_policy else {}
        with open_run(out, "questions", identity=identity, config=config.model_dump()) as run:
            await retriever.ready()
            with PassageStore(index) as store:
                maker = QuestionMaker(config, run, store, PassageGraph(store, config.wanted, config.seed), retriever)
                failed = await maker.rounds()
                told = await maker.finish()
            run.set(counts=told["passed"], usage=told["usage"])
    return told, failed


@dataclass
class QuestionMaker:
    """Draws paths, has each made into a question, and keeps what passes."""

    config: QuestionsConfig
    run: Run
    store: PassageStore
    graph: PassageGraph
    retriever: Retriever

    def __post_init__(self) -> None:
        self.results = Results(self.run.path / "made.jsonl", MADE)
        self.tried: dict[str, PassagePath] = {}

    async def rounds(self) -> int:
        """Makes questions until each shape has its quota, or has no further path; returns how many paths failed.

        Which paths a round tries follows from what passed before it, so a run that was killed tries the same ones.
        """
        quotas, (tries, spare) = self.config.quotas(), TRIES[self.config.by_policy]
        tries *= self.config.tries
        drawn = {(split, hops): islice(self.graph.paths(hops, split, self.config.seed), count * tries)
                 for (split, hops), count in quotas.items()}  # fmt: skip
        failed, passed = 0, Counter[tuple[str, int]]()
        while True:
            fresh = [path for key, paths in drawn.items() if quotas[key] > passed[key]
                     for path in islice(paths, math.ceil(spare * (quotas[key] - passed[key])))]  # fmt: skip
            if not fresh:
                return failed
            self.tried |= {path.id: path for path in fresh}
            failed = await self._make([*self.tried.values()])
            passed = Counter((made.split, made.hops) for made in self.made() if not made.gate)

    def made(self) -> Iterator[MadeQuestion]:
        """What became of each path so far, in the order in which they were drawn."""
        return (made for made in read_records(self.results.path, MadeQuestion) if made.id in self.tried)

    async def _make(self, paths: Sequence[PassagePath]) -> int:
        if self.config.by_policy:
            questions = [Question(path.id, " → ".join(self._ids(path)), ("",)) for path in paths]
            return await ask_each(self.run, questions, self.results, self._asked, role="policy",
                                  model=self.config.policy, replies=DraftFormat(), budget=self.config.budget,
                                  most=2 * calls_of(self.config.hops))  # fmt: skip
        todo = [path for path in paths if path.id not in self.results]
        with (
            self.results.appending() as keep,
            Progress("questions", len(paths), "paths", len(paths) - len(todo)) as bar,
        ):
            for path in todo:
                keep(await self._one(path, TemplateWriter()))
                bar.advance()
        self.results.put_in_order(path.id for path in paths)
        return 0

    async def _asked(self, question: Question, policy: Policy) -> MadeQuestion:
        return await self._one(self.tried[question.id], PolicyWriter(policy))

    async def _one(self, path: PassagePath, writer: QuestionWriter) -> MadeQuestion:
        return await make(path, [self.store.read(row) for row in path.rows], writer, self.retriever)

    def _ids(self, path: PassagePath) -> list[str]:
        return [self.store.read(row).id for row in path.rows]

    async def finish(self) -> dict[str, Any]:
        """Takes what passed through the gates of the whole set, and writes the files; returns what gates.json holds.

        Raises ConfigError where a split that is wanted has no question.
        """
        all_made = [made async for made in self._whole()]
        kept = [made for made in all_made if not made.gate]
        told = self._told(all_made, kept)
        write_json(self.run.path / "gates.json", told)
        lacking = [name for name, count in self.config.wanted.items() if count and not told["passed"].get(name)]
        if lacking:
            most = max(told["gates"], key=told["gates"].__getitem__, default="none")
            raise ConfigError(
                f"no question for {' and '.join(lacking)} passed, of {told['paths']} paths (most failed at: "
                f"{GATES.get(most, 'no path')}); give more documents, or a stronger policy"
            )
        write_records(self.run.path / "questions.jsonl", [made.asked() for made in kept])
        for name in SPLITS:
            write_records(self.run.path / f"{name}.jsonl", [made.asked() for made in kept if made.split == name])
        passages = ({"id": one.id, "title": one.title, "text": one.text}
                    for one in map(self.store.read, self.graph.rows_of("train")))  # fmt: skip
        write_records(self.run.path / TRAINED, passages)
        return told

    async def _whole(self) -> Any:
        """What was made, with the gates of the whole set: none asked twice, none told in another split, none too many."""
        quotas, seen = self.config.quotas(), set[str]()
        for made in self.made():
            gate, key = made.gate, (made.split, made.hops)
            if not gate and made.draft is not None:
                words = normalise(made.draft.question)
                if words in seen:
                    gate = "double"
                elif await self._leaks(made):
                    gate = "leak"
                elif not quotas[key]:
                    gate = "surplus"
                else:
                    seen.add(words)
                    quotas[key] -= 1
            yield replace(made, gate=gate)

    async def _leaks(self, made: MadeQuestion) -> bool:
        """Whether a passage of another split says what a passage of the path says."""
        for passage in map(self.store.read, self.tried[made.id].rows):
            runs = _runs(passage)
            for other in await self.retriever.search(f"{passage.title} {passage.text}"[:2000], 5):
                shared = len(runs & _runs(other)) / max(1, len(runs))
                if other.id != passage.id and shared >= ALIKE[1] and self.graph.split_of(other) != made.split:
                    return True
        return False

    def _told(self, all_made: Sequence[MadeQuestion], kept: Sequence[MadeQuestion]) -> dict[str, Any]:
        spent = {key: self.run.manifest.get("spent", {}).get(key, 0) for key in vars(Usage())}
        return {
            "writer": "policy" if self.config.by_policy else "templates",
            "documents": len(set(self.graph.documents)), "passages": len(self.graph.documents),
            "paths": len(self.tried), "failed": len(self.tried) - len(all_made),
            "gates": {gate: count for gate in GATES if (count := sum(made.gate == gate for made in all_made))},
            "passed": dict(Counter(made.split for made in kept)),
            "hops": dict(sorted(Counter(str(made.hops) for made in kept).items())),
            "wanted": self.config.wanted, "usage": spent,
            "per_100_calls": 100 * len(kept) / spent["calls"] if spent["calls"] else None,
        }  # fmt: skip


def _runs(passage: Passage) -> set[tuple[str, ...]]:
    words = normalise(passage.text).split()
    return {tuple(words[at : at + ALIKE[0]]) for at in range(max(1, len(words) - ALIKE[0] + 1))}


def shown(told: Mapping[str, Any]) -> str:
    """What passed, and what each gate kept out, in lines."""
    lines = [f"{told['paths']} paths, {sum(told['passed'].values())} questions pass: "
             + ", ".join(f"{count} {name}" for name, count in told["passed"].items())]  # fmt: skip
    if told["failed"]:
        lines.append(f"{told['failed']:>6} failed: the request did; run again to retry them")
    lines += [f"{count:>6} {gate}: {GATES[gate]}" for gate, count in told["gates"].items()]
    return "\n".join([*lines, ""])
