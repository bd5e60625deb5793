"""`steprag demo`: from search trees to a gain, in minutes on two cores; and an index for the chat.

The policy is the small one of `steprag tunnel`, in its small world (docs/tunnel.md). Agent, trees, pairs, predictions
and scores are those of the big commands. Every stage keeps a run folder below `--out`: a second demo reuses what is
finished, an interrupted one is resumed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from apps.reproduce.report import bears, made
from apps.reproduce.stages import Pipeline, stage
from apps.tunnel.world import HOPS, KIND_OF, RELATIONS, FactWorld, parts_of
from steprag import atlas
from steprag.batch.journal import JOURNAL, Journal
from steprag.config.load import parse_arguments
from steprag.console.plots import can_draw, new_figure, save_png
from steprag.console.progress import say, say_next
from steprag.engines.outlive_guard import running
from steprag.engines.threads import spin_briefly
from steprag.errors import ConfigError, counted
from steprag.records.jsonl import file_hash, read_records, write_json, write_records, written_whole
from steprag.records.training_rows import Pair
from steprag.runs.run import Run, open_run, read_manifest
from steprag.types import Prediction, Question

if TYPE_CHECKING:
    from data_generation.expand import Searcher
    from data_generation.growth import SearchTree
    from steprag.tree import Tree

T = TypeVar("T")
SIZES = {
    "questions": (120, "training questions to search"),
    "calls": (64, "calls of the policy a training question"),
    "steps": (80, "steps of DPO, 16 pairs each"),
    "tests": (1000, "questions of another world to answer before and after"),
    "seed": (1, "decides the training world, its search and the order of the pairs"),
}
TEST = FactWorld(77)
"""The world of the test questions. No training world has its facts."""
RUNS = ("before", "after")
"""Of training: folders of predictions."""
Share = tuple[float, ...]
"""Exact match in %, and the two ends of its 95 % interval."""


def main(argv: list[str]) -> int:
    """Runs `steprag demo`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="steprag demo", description="Trees, pairs, training and a gain, in minutes.")
    parser.add_argument("--out", default="runs/demo", metavar="DIR", help="folder of the demo's runs [runs/demo]")
    for name, (size, words) in SIZES.items():
        names = ["--limit", "--questions"] if name == "questions" else [f"--{name}"]  # the second of version 0.1
        parser.add_argument(*names, dest=name, type=int, default=size, metavar="N", help=f"{words} [{size}]")
    parser.add_argument("--no_chat", action="store_true", help="without the index that steprag serve answers from")
    parser.add_argument("--pages", action="store_true", help="then serve viewer and chat, until Ctrl-C")
    given = parse_arguments(parser, argv)
    if wrong := next((name for name in SIZES if getattr(given, name) < 1), None):
        raise ConfigError(f"--{wrong} is 1 or more")
    spin_briefly()  # before a stage loads torch
    out, started = Path(given.out), time.monotonic()
    demo = Demo(out, **{name: getattr(given, name) for name in SIZES})
    demo.run()
    sys.stdout.write(demo.report())
    commands = [["view", str(out)]]
    if not given.no_chat:
        Pipeline(out).run(stage(out / "index", "index build", corpus=atlas.path("corpus")))
        commands.append(["serve", "--index", str(out / "index")])
    spent, typed = time.monotonic() - started, "".join(f"    steprag {' '.join(words)}\n" for words in commands)
    sys.stdout.write(f"\n{spent:.0f} s in all. Look at the trees; talk to the big agent:\n\n{typed}")
    say_next("view", out)
    return show(commands) if given.pages else 0


def show(commands: Sequence[Sequence[str]]) -> int:
    """Runs services side by side, each of which prints its link, until one ends or Ctrl-C comes."""
    sys.stdout.flush()
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        each = [[sys.executable, "-m", "apps.commands", *words] for words in commands]
        begun = [stack.enter_context(running(one, sys.stderr, os.environ, sys.stdout)) for one in each]
        while (ended := next((one for one in begun if one.poll() is not None), None)) is None:
            time.sleep(0.2)
        return ended.returncode
    return 0


@dataclass(frozen=True)
class Demo:
    """One training of the tunnel's policy; its stages' folders are below `out`. Fields as in `SIZES`."""

    out: Path
    questions: int
    calls: int
    steps: int
    tests: int
    seed: int

    def run(self) -> None:
        """Search, pairs, training, answers before and after. What is finished is not done again."""
        import torch

        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # a model this small is slower with more
        try:
            self._search()
            by = {"label.name": "gold", "validation": 0, "card.name": "Steps by marked facts"}
            Pipeline(self.out).run(stage(self.out / "pairs", "pairs", trees=self.out / "trees", **by))
            self._train()
            for name in RUNS:
                self._answer(name)
        finally:
            torch.set_num_threads(threads)

    @contextmanager
    def _opened(self, name: str, stage: str, world: FactWorld | None = None, **identity: Any) -> Iterator[Run]:
        """A stage's run folder; the journal in it holds the passages of its `world`, for the viewer."""
        identity |= {"index": world.fingerprint} if world else {}
        with open_run(self.out / name, stage, identity={"model": "small policy", **identity}, config={}) as run:
            if world and not run.finished:
                with closing(Journal(run.path / JOURNAL)) as journal:
                    journal.searched("", "", 0, tuple(world.corpus()))
            yield run

    def _search(self) -> None:
        from apps.tunnel.grow import flat, grown
        from apps.tunnel.model import start_of
        from data_generation.tally import summarise
        from steprag.batch.results import Results
        from steprag.batch.tree_results import TREES

        world, size = FactWorld(5000 + self.seed), {"questions": self.questions, "calls": self.calls}
        with self._opened("trees", "generate", world, seed=self.seed, **size) as run:

            async def noted(tree: SearchTree, searcher: Searcher) -> Tree:
                return await _noted(run, tree.question, flat(tree, searcher))

            if not run.finished:
                say(f"demo: {counted(self.questions, 'tree')} of {counted(self.calls, 'call')}")
                asked = by_hops(world, self.questions, "train")
                trees = grown(world, start_of("middle"), asked, self.calls, self.seed, noted)
                write_records(run.path / "trees.jsonl", trees)
            summarise(run, Results(run.path / "trees.jsonl", TREES).counts())

    def _train(self) -> None:
        import numpy as np
        from safetensors.torch import save_file

        from apps.tunnel.model import start_of
        from apps.tunnel.train import Schedule, dpo
        from apps.tunnel.unit import pair_rows

        file = self.out / "pairs/pairs.train.jsonl"
        with self._opened("dpo", "train", pairs=file_hash(file), steps=self.steps, seed=self.seed) as run:
            if not run.finished:
                rows = pair_rows([(pair, 0) for pair in read_records(file, Pair)])
                if not rows:
                    raise ConfigError("the trees gave no pair to train on; give more --questions or --calls")
                say(f"demo: {counted(self.steps, 'step')} of DPO over {counted(len(rows), 'pair')}")
                run.set(rows=len(rows))
                chance = np.random.default_rng(self.seed)
                weights = dpo(start_of("middle"), rows, Schedule(self.steps), chance, lambda told: run.note(**told))
                save_file({name: each.detach() for name, each in weights.items()}, run.path / "model.safetensors")

    def _answer(self, name: str) -> None:
        from safetensors.torch import load_file

        from apps.tunnel.grow import AT_ONCE, environment_of, together
        from apps.tunnel.model import start_of
        from apps.tunnel.policy import BatchedPolicy
        from inference.answer import answer_one
        from inference.scoring.evaluate import evaluate
        from inference.scoring.scores import HARNESS

        file = self.out / "dpo/model.safetensors"
        weights = "start" if name == RUNS[0] else file_hash(file)
        same = {"questions": f"{TEST.fingerprint}/{self.tests}", "harness": HARNESS}
        policy = {"model": f"small policy, {name} training", "weights": weights}
        with self._opened(name, "infer", TEST, policy=policy, **same) as run:
            if not run.finished:
                say(f"demo: {self.tests} test questions, {name} training")
                playing = BatchedPolicy(start_of("middle") if name == RUNS[0] else load_file(file), 0.0)
                environment = environment_of(TEST)
                asked = by_hops(TEST, self.tests, "test")
                answers = (_noted(run, one, answer_one(one, 0, environment, playing)) for one in asked)
                told = together(answers, AT_ONCE)
                write_records(run.path / "predictions.jsonl", told)
                run.save(asked=len(asked))
                run.set(counts={"questions": evaluate(run.path)["questions"]})

    def report(self) -> str:
        """Writes report.md, report.json and demo.png; returns the page."""
        from inference.scoring.runs_compared import difference, groups_of, read_run

        runs = [read_run(self.out / name, name) for name in RUNS]
        parts, gain = {"all": runs, **groups_of(runs)}, vars(difference(runs[1], runs[0]))
        stages = {name: made(read_manifest(self.out / name)) for name in ("trees", "pairs")}
        stages["training"] = f"{counted(self.steps, 'step')} of DPO"
        figures: dict[str, dict[str, Share]] = {}
        for i, run in enumerate(runs):
            scores = {kind: part[i].figures["em"] for kind, part in parts.items()}
            figures[run.name] = {kind: tuple(100 * em[key] for key in ("value", "low", "high"))
                                 for kind, em in scores.items()}  # fmt: skip
        write_json(self.out / "report.json", {"stages": stages, "gain": gain, "em": figures})
        lines = ["# From trees to a gain", "", *(f"- {name}: {what}" for name, what in stages.items()), "",
                 f"{self.tests} questions of another world, after training over before: {bears(gain)}. This is one "
                 f"training, seed {self.seed}; the interval is over questions and knows no other training.", "",
                 *(["![right answers by hops](demo.png)", ""] if draw(figures, self.out / "demo.png") else []),
                 f"    {'right, %':<9}" + "".join(f"{kind:>8}" for kind in parts),
                 *(f"    {name:<9}" + "".join(f"{em:>8.1f}" for em, *_ in each.values())
                   for name, each in figures.items()),
                 "", *self._pair(), *self._question(), ""]  # fmt: skip
        with written_whole(self.out / "report.md") as stream:
            stream.write("\n".join(lines))
        return "\n".join(lines)

    def _pair(self) -> list[str]:
        """Where the two steps of the first pair part, and both."""
        pair = next(read_records(self.out / "pairs/pairs.train.jsonl", Pair))
        before = " ".join(message["content"].strip() for message in pair.prompt)
        told = {"after": before, "chosen": pair.chosen[0]["content"], "rejected": pair.rejected[0]["content"]}
        return ["A pair:", "", *(f"    {name:<9} {text.strip()}" for name, text in told.items())]

    def _question(self) -> list[str]:
        """The shortest question of two hops that training made right, with both transcripts."""
        files = (self.out / name / "predictions.jsonl" for name in RUNS)
        each = zip(*(read_records(file, Prediction) for file in files), strict=True)
        turned = [both for both in each if both[0].prediction != both[1].prediction == both[1].golden_answers[0]]
        if not turned:
            return []
        shown = min(turned, key=lambda both: (both[0].metadata["hops"] != 2, sum(len(one.steps) for one in both)))
        lines = ["", f"A question: {shown[0].question} Right is {shown[0].golden_answers[0]}.", *_key(shown[0])]
        for name, one in zip(RUNS, shown, strict=True):
            lines += ["", f"{name} training", *_transcript(one)]
        return lines


async def _noted(run: Run, question: Question, work: Awaitable[T]) -> T:
    """What the work on a question gives; the run notes when it was done, for the curves."""
    begun = time.monotonic()
    made = await work
    run.note(event="done", id=question.id, seconds=round(time.monotonic() - begun, 3))
    return made


def _key(asked: Prediction) -> list[str]:
    """How the passages tell the relations of a question."""
    _, relations, _ = parts_of(asked.question)
    return [f"The notes call a {name} {' or '.join(RELATIONS[name])}; a {KIND_OF[name].rstrip(':')} is right about it."
            for name in dict.fromkeys(relations)]  # fmt: skip


def by_hops(world: FactWorld, count: int, name: str) -> list[Question]:
    """Questions of 1 to 6 hops in turn, their hops named as the kind that they are of."""
    kinds = {hops: f"{hops} hop{'s' * (hops > 1)}" for hops in HOPS}
    asked = world.questions(count, HOPS, name=name)
    return [replace(one, metadata={**one.metadata, "type": kinds[one.metadata["hops"]]}) for one in asked]


def draw(figures: dict[str, dict[str, Share]], path: Path) -> bool:
    """Right answers of each run by kind of question; False where it cannot be drawn."""
    if not can_draw():
        return False
    import numpy as np

    figure = new_figure(7, 3)
    axes = figure.subplots()
    for place, (name, each) in enumerate(figures.items()):
        em, low, high = np.array(list(each.values())).T
        axes.bar(np.arange(len(em)) + 0.4 * place - 0.2, em, 0.38, yerr=[em - low, high - em], capsize=3,
                 label=f"{name} training", color=("tab:gray", "tab:blue")[place])  # fmt: skip
        axes.set_xticks(range(len(each)), list(each))
    axes.set_ylabel("right answers, %")
    axes.legend()
    save_png(figure, path, 110)
    return True


def _transcript(prediction: Prediction) -> list[str]:
    """Every step as the policy wrote it, and below a query what it found."""
    texts, found, lines = {passage.id: passage.text for passage in TEST.corpus()}, iter(prediction.passages), [""]
    for step in prediction.steps:
        lines.append(f"    {step.action:<9} {step.text.strip()}")
        if step.action == "query":
            lines.append(f"{'':<14}finds: " + "; ".join(f"{one.title} {texts[one.id]}" for one in next(found)))
    return lines
