"""`steprag adapt questions`: an index to questions whose path through its passages is known, in train, dev and test.

Paths are drawn until every split and number of hops has its questions, or has tried often enough. Calls are
journalled and bounded as everywhere: started again, the run resumes and pays for nothing twice.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from apps.adapt import writers
from apps.adapt.draw import Draw
from apps.adapt.gates import FOUND, GATES, MADE, MadeQuestion, QuestionWriter, make, runs_of
from apps.adapt.passages import SPLITS, PassageGraph, PassagePath
from indexes import open_retriever
from indexes.rows.passage_store import PassageStore
from inference.config import GreedyConfig
from steprag.agent.retriever import Retriever
from steprag.batch.results import Results
from steprag.batch.worklist import FAILED, ask_all, failures_in, model_asked, run_interruptible
from steprag.config.load import StageConfig, add_options, config_from, parse_arguments
from steprag.config.recipes import PASSAGES, index_of, out_of
from steprag.config.sections import Positive, PromptConfig, RetrieverConfig
from steprag.console.progress import Progress, say_next
from steprag.engines.models import EMBEDDED
from steprag.errors import PART_DONE, ConfigError, ContentFiltered, RequestError, counted
from steprag.policy.budget import BudgetConfig
from steprag.policy.protocols import Policy
from steprag.records.jsonl import existing, file_hash, read_records, write_json, write_records
from steprag.runs.run import Run, open_run
from steprag.scores.metrics import normalise
from steprag.types import Question, Usage

TRAINED = "train.passages.jsonl"
"""The passages of the documents that questions to train on are made from: a corpus."""
FREE, TURNS = 100, 4
"""Times as many tries where templates write, which costs nothing; questions that they make of the same passages."""
LIKELY = 1.5, 1, 60
"""Likely of a question: paths that are tried, passages of a prompt for each hop, and tokens of a reply."""
ALIKE = 5, 0.5
"""Words in a row, and the share of a passage's such runs from which another passage says the same."""


class WriterConfig(GreedyConfig):
    """The policy as writer and reader of questions: greedy, with room for a draft."""

    max_tokens: Positive = Field(default=512, description="longest completion, in tokens")


class QuestionsConfig(StageConfig):
    """`steprag adapt questions`."""

    names_index: ClassVar[bool] = True

    policy: WriterConfig = Field(default_factory=WriterConfig)
    retriever: RetrieverConfig = Field(default_factory=RetrieverConfig)
    prompt: PromptConfig = Field(default_factory=PromptConfig)
    budget: BudgetConfig = Field(default_factory=BudgetConfig)
    writer: Literal["auto", "policy", "templates"] = Field(
        default="auto", description="policy, or templates over extracted facts; auto: those for the embedded model"
    )
    questions: Positive = Field(default=200, description="questions to train on")
    dev: int | None = Field(
        default=None, ge=0, description="questions to choose by, of documents of their own; none: a tenth of questions"
    )
    test: Positive = Field(default=100, description="questions to test on, of documents never trained on")
    hops: int = Field(3, ge=1, le=writers.MOST_HOPS, description="passages that a question leads through at most")
    least: Positive = Field(default=8, description="questions to train on, to test on, and pairs: with fewer it stops")
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
        dev = self.questions // 10 if self.dev is None else self.dev
        return dict(zip(SPLITS, (self.questions, dev, self.test), strict=True))

    def quotas(self) -> dict[tuple[str, int], int]:
        """Questions by split and hops: as many of each, one more of the shortest where they do not divide."""
        return {(split, hops): (count + self.hops - hops) // self.hops
                for split, count in self.wanted.items() for hops in range(1, self.hops + 1)}  # fmt: skip

    def use(self, *, most: bool) -> Usage:
        """What writing takes at most, each reply asked for twice, or likely takes; nothing where templates write."""
        if not self.by_policy:
            return Usage()
        times, found, reply = (2 * self.tries, FOUND, self.policy.max_tokens) if most else LIKELY
        uses = [(writers.use_of(hops, hops * found, reply), times * n) for (_, hops), n in self.quotas().items()]
        return Usage(*(round(sum(getattr(use, key) * count for use, count in uses)) for key in Usage().shown))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag adapt questions", description="Questions with paths, from an index.")
    parser.add_argument("--index", metavar="INDEX", help="index folder [the newest under runs]")
    parser.add_argument("--out", metavar="RUN", help="run folder: questions by split, gates.json [runs/questions-NAME]")
    add_options(parser, QuestionsConfig)
    given = parse_arguments(parser, argv)
    config = config_from(QuestionsConfig, given)
    index = existing(index_of(given), "index folder")
    told = run_interruptible(make_questions(config, index, out_of(given, "questions", index)))
    passed = ", ".join(f"{count} {name}" for name, count in told["passed"].items())
    made = counted(sum(told["passed"].values()), "question")
    lines = [f"{made}: {passed}; of {counted(told['paths'], 'way')} through the documents"]
    lines += [f"{told['failed']:>6} failed: the request did; run again to retry them"] if told["failed"] else []
    lines += [f"{count:>6} {gate}: {GATES[gate]}" for gate, count in told["gates"].items()]
    sys.stdout.write("\n".join([*lines, ""]))
    return PART_DONE if told["failed"] else 0


async def make_questions(config: QuestionsConfig, index: Path, out: Path) -> dict[str, Any]:
    """Runs the stage; returns what gates.json holds. Raises BudgetReached; ConfigError where no question passes."""
    existing(index / PASSAGES, "passages of the index folder")
    keys = {"questions", "dev", "test", "hops", "seed"}  # more tries continue from those already made
    async with aclosing(open_retriever(index, config.retriever)) as retriever:
        identity: dict[str, Any] = {"index": retriever.fingerprint, "prompt": {"hash": file_hash(writers.PROMPTS)[:16]}}
        identity |= {**config.model_dump(include=keys), "writer": "policy" if config.by_policy else "templates"}
        identity |= {"policy": model_asked(config.policy)} if config.by_policy else {}
        with open_run(out, "questions", identity=identity, config=config.model_dump()) as run:
            await retriever.ready()
            with PassageStore(index) as store:
                tenth = sum(config.wanted.values()) // 10  # of the documents at least, so that questions are found
                shares = {split: count and max(count, tenth) for split, count in config.wanted.items()}
                graph = PassageGraph(store, shares, config.seed)
                maker = QuestionMaker(config, run, store, graph, retriever, Results(run.path / "made.jsonl", MADE))
                await maker.make()
                say_next("generate", run.path / "train.jsonl", "--index", index)
                return await maker.finish()


@dataclass
class QuestionMaker:
    """Has each path that is drawn made into a question, and keeps what passes."""

    config: QuestionsConfig
    run: Run
    store: PassageStore
    graph: PassageGraph
    retriever: Retriever
    results: Results[MadeQuestion]

    def __post_init__(self) -> None:
        self._draw(self.config.quotas())

    def _draw(self, quotas: dict[tuple[str, int], int]) -> None:
        """The paths that are tried, until each split and number of hops has enough questions, or no further path."""
        config, times, turns = self.config, self.config.tries, 1
        if not config.by_policy:
            times, turns = times * FREE, TURNS
        wanted = {f"{split}-{hops}": count for (split, hops), count in quotas.items()}
        paths = {f"{split}-{hops}": islice(self.graph.paths(hops, split, config.seed, turns), count * times)
                 for (split, hops), count in quotas.items()}  # fmt: skip
        self.quotas, self.draw = quotas, Draw(wanted, paths, {made.id: not made.gate for made in self.made()})

    def made(self) -> Iterator[MadeQuestion]:
        """What became of paths, in their order."""
        return read_records(self.results.path, MadeQuestion) if len(self.results) else iter(())

    async def make(self) -> None:
        """Makes a question of each path; where longer paths are too few, more of one passage. Raises BudgetReached."""
        await self._try_all()
        passed = Counter(
            (made.split, made.hops) for made in self.made() if not made.gate and made.id in self.draw.tried
        )
        lacking = Counter[str]()
        for (split, hops), count in self.quotas.items():
            lacking[split] += max(0, count - passed[split, hops]) if hops > 1 else 0
        if lacking.total() and not self.draw.open:
            self._draw({(split, hops): count + lacking[split] * (hops == 1)
                        for (split, hops), count in self.quotas.items()})  # fmt: skip
            await self._try_all()

    async def _try_all(self) -> None:
        draw, failed_before = self.draw, failures_in(self.run.path)

        async def written(question: Question, policy: Policy) -> MadeQuestion:
            try:
                made = await self._one(draw.tried[question.id], writers.PolicyWriter(policy))
            except RequestError as error:  # a provider's fault draws no further path in place of this one
                if isinstance(error, ContentFiltered) or question.id in failed_before:
                    draw.tell(question.id, False)
                raise
            draw.tell(question.id, not made.gate)
            return made

        if self.config.by_policy:
            next(draw, None)  # without one no engine is opened
            await ask_all(self.run, draw.asked, self.results, written, role="policy", model=self.config.policy,
                           replies=writers.DraftFormat(), budget=self.config.budget,
                           max_calls=2 * writers.calls_of(self.config.hops), refill=draw)  # fmt: skip
        else:
            writer = writers.TemplateWriter(writers.several(map(self.store.read, range(len(self.store)))))
            with self.results.appending() as keep, Progress("questions", None, "paths") as bar:
                for question in draw:
                    keep(made := await self._one(draw.tried[question.id], writer))
                    draw.tell(made.id, not made.gate)
                    bar.advance()
            self.results.put_in_order(question.id for question in draw.asked)

    async def _one(self, path: PassagePath, writer: QuestionWriter) -> MadeQuestion:
        return await make(path, [self.store.read(row) for row in path.rows], writer, self.retriever)

    async def finish(self) -> dict[str, Any]:
        """Takes what passed through the gates of the whole set, and writes the files; returns what gates.json holds.

        The questions and documents of dev are given to train where train lacks some. Raises ConfigError where train or
        test has fewer than the least.
        """
        out, made, wanted = self.run.path, [one async for one in self._whole()], self.config.wanted
        trains = {"train"}
        if sum(one.split == "train" and not one.gate for one in made) < wanted["train"]:
            trains.add("dev")
        made = [replace(one, split="train") if one.split in trains else one for one in made]
        kept = [one for one in made if not one.gate]
        told = self._told(made, kept)
        write_json(out / "gates.json", told)
        least = 1 if self.draw.open else self.config.least  # what failed is asked for again
        if any(told["passed"].get(name, 0) < min(wanted[name], least) for name in ("train", "test")):
            raise ConfigError(self._too_few(told))
        write_records(out / "questions.jsonl", [one.asked() for one in kept])
        for name in SPLITS:
            write_records(out / f"{name}.jsonl", [one.asked() for one in kept if one.split == name])
        trained = map(self.store.read, sorted(row for split in trains for row in self.graph.rows_of(split)))
        write_records(out / TRAINED, ({"id": one.id, "title": one.title, "text": one.text} for one in trained))
        status = "partial" if self.draw.open else "running"  # what failed twice is not waited for
        self.run.set(status=status, counts=told["passed"], usage=told["usage"])
        return told

    def _too_few(self, told: Mapping[str, Any]) -> str:
        """How many questions there are, why others failed, the most frequent reasons first, and what to do."""
        train, test = (told["passed"].get(name, 0) for name in ("train", "test"))
        reasons = Counter({GATES[gate]: count for gate, count in told["gates"].items()})
        reasons.update({f"the request failed: {self.run.path / FAILED}": told["failed"]} if told["failed"] else {})
        why = "; ".join(f"{count}: {reason}" for reason, count in reasons.most_common(3)) or "no passage was found"
        remedy = "Run it again" if told["failed"] else "Give more files, or a model to write them (--base_url, --model)"
        return (
            f"too few questions: {train} to train on, {test} to test on (--least {self.config.least}). Of "
            f"{counted(told['paths'], 'way')} through {counted(told['documents'], 'document')}, {why}. {remedy}"
        )

    async def _whole(self) -> AsyncIterator[MadeQuestion]:
        """What was made, with the gates of the whole set: asked twice, told in another split too, too many."""
        quotas, seen = dict(self.quotas), set[str]()
        for made in (one for one in self.made() if one.id in self.draw.tried):
            words, key, gate = normalise(made.draft.question if made.draft else ""), (made.split, made.hops), made.gate
            if not gate:
                full = "" if quotas[key] else "surplus"
                gate = "double" if words in seen else full or ("leak" if await self._leaks(made) else "")
            if not gate:
                seen.add(words)
                quotas[key] -= 1
            yield replace(made, gate=gate)

    async def _leaks(self, made: MadeQuestion) -> bool:
        """Whether a passage of another split says what a passage of the path says."""
        for passage in map(self.store.read, self.draw.tried[made.id].rows):
            runs = runs_of(passage.text, ALIKE[0])
            for other in await self.retriever.search(f"{passage.title} {passage.text}"[:2000], 5):
                elsewhere = self.graph.split_of(other) != made.split
                if elsewhere and len(runs & runs_of(other.text, ALIKE[0])) >= ALIKE[1] * max(1, len(runs)):
                    return True
        return False

    def _told(self, made: Sequence[MadeQuestion], kept: Sequence[MadeQuestion]) -> dict[str, Any]:
        spent: Mapping[str, int] = self.run.manifest.get("spent", {})
        usage = {key: spent.get(key, 0) for key in Usage().shown}
        gates, documents = Counter(one.gate for one in made), self.graph.documents
        return {
            "writer": "policy" if self.config.by_policy else "templates", "documents": len(set(documents)),
            "passages": len(documents), "paths": len(self.draw.tried), "failed": len(self.draw.tried) - len(made),
            "gates": {gate: gates[gate] for gate in GATES if gates[gate]}, "wanted": self.config.wanted,
            "passed": {name: count for name in SPLITS if (count := sum(one.split == name for one in kept))},
            "usage": usage,
            "hops": dict(sorted(Counter(str(one.hops) for one in kept).items())),
            "per_100_calls": 100 * len(kept) / usage["calls"] if usage["calls"] else None,
        }  # fmt: skip
