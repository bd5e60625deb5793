"""Makes the starts of the tunnel's village: adapters of the embedded model that read, ask, and have a habit.

    python -m benchmarks.village_start FOLDER            # stage by stage; a killed run resumes at its last checkpoint
    python -m benchmarks.village_start FOLDER --gates STAGE

The shipped agent goes on with worked episodes of fresh villages, by `steprag train`: first pages in which one sentence
alone fits, then pages that state the same relation of strangers too. The last stages teach the habit that labels are to
mend: a later query names whom the query before it named, and not whom the evidence leads to.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from apps.commands import run
from apps.tunnel.village import NAMES, Village, VillageHop, environment_over, parts_of, worked
from data_generation.worked import WorkedEpisode, replay
from indexes import open_retriever
from steprag.agent.grammars import TRANSCRIPT
from steprag.config.sections import PolicyConfig
from steprag.console.progress import say
from steprag.errors import StepFormatError, StepragError
from steprag.policy.open import open_policy
from steprag.records.jsonl import write_records
from steprag.records.training_rows import Trajectory
from steprag.scores.metrics import normalise
from steprag.types import Completion, Question

BEGUN = "atlas-agent"
RIGHT = {"high": (0.6, 0.3, 0.05, 0.02), "low": (0.01,)}
"""How often a later query is right; of `high` a quarter of the relations has each."""


@dataclass(frozen=True)
class Lesson:
    """A stage of the curriculum. `worlds`: of each village how pages are told, which share of them has rivals, and how
    many episodes show it; `habit`: a key of `RIGHT`, and then later queries above all are learnt.
    """

    name: str
    after: str
    worlds: tuple[tuple[str, float, int], ...]
    rate: float
    seed: int
    habit: str = ""


LESSONS = (
    Lesson("words", BEGUN, (("list", 0.0, 16), ("text", 0.0, 24), ("text", 0.5, 24), ("text", 1.0, 60)), 5e-4, 100),
    Lesson("reader", "words", (("list", 0.0, 8), *[("text", 1.0, 36)] * 2), 5e-4, 300),
    Lesson("high", "reader", (("text", 1.0, 48), ("list", 0.0, 48)), 5e-4, 400, "high"),
    Lesson("low", "reader", (("text", 1.0, 48), ("list", 0.0, 48)), 5e-4, 400, "low"),
)


def right_shares(habit: str) -> dict[str, float]:
    """By relation, how often a later query for it is right."""
    shares = RIGHT[habit] * (len(NAMES) // len(RIGHT[habit]))
    return dict(zip(random.Random(11).sample(NAMES, len(NAMES)), shares, strict=True))


def demonstrated(world: Village, question: Question, habit: str, rng: random.Random, dense: float) -> WorkedEpisode:
    """An episode of the demonstrator, who reads well and asks by habit. `dense`: the share of steps to learn, beside
    those that the lesson is about.
    """
    person, relations = parts_of(question.question)
    shares = right_shares(habit) if habit else dict.fromkeys(NAMES, 1.0)
    hops: list[VillageHop] = []
    asked = person
    for relation in relations:
        asked = person if not hops or rng.random() < shares[relation] else asked
        hops.append(world.hop(asked, relation))
        person = hops[-1].person

    def learns(action: str, place: int) -> bool:
        return (action == "query" and place > 0 if habit else action == "evidence") or rng.random() < dense

    return worked(question, hops, learns)


async def rows_of(
    world: Village, folder: Path, questions: Sequence[Question], habit: str = "", dense: float = 1.0
) -> list[Trajectory]:
    """Supervised steps in the product's own prompts, over the product's own index of the village."""
    passages, rng, rows = {page.id: page for page in world.corpus()}, random.Random(world.seed), list[Trajectory]()
    async with aclosing(open_retriever(world.build(folder))) as retriever:
        environment = environment_over(retriever)
        for question in questions:
            rows += await replay(demonstrated(world, question, habit, rng, dense), passages, environment, rng)
    return rows


def taught(lesson: Lesson, out: Path) -> None:
    """Trains a lesson, or finds it trained."""
    rows, model = out / lesson.name / "rows", out / lesson.name / "model"
    if not (rows / "sft.train.jsonl").exists():
        made: list[Trajectory] = []
        hops, dense = ((2, 3, 3), 0.1) if lesson.habit else ((1, 2, 3), 0.5)
        for place, (told, rivals, episodes) in enumerate(lesson.worlds):
            world = Village(lesson.seed + place, told, rivals=rivals)
            asked = world.questions(episodes, hops)
            made += asyncio.run(rows_of(world, out / lesson.name / f"village-{place}", asked, lesson.habit, dense))
        rows.mkdir(exist_ok=True)
        write_records(rows / "sft.train.jsonl", made)
    before = lesson.after if lesson.after == BEGUN else str(out / lesson.after / "model")
    code = run(["train", str(rows), "--stage", "sft", "--adapter", before, "--out", str(model),
                "--side_by_side", "question", "--batch_size", "8", "--learning_rate", str(lesson.rate),
                "--warmup", "4", "--threads", "1", "--row_tokens", "256", "--save_steps", "8",
                "--held_out", "0"])  # fmt: skip
    if code:
        raise StepragError(f"lesson {lesson.name} ended with exit code {code}")


GATES = {"list": Village(901, "list", fresh=True), "text": Village(902, fresh=True),
         "held-out phrasings": Village(903, fresh=True, unseen=True)}  # fmt: skip


ALLOWED = {"evidence": ("evidence",), "query": ("query", "answer"), "answer": ("query", "answer")}


async def gates(adapter: str, out: Path, count: int) -> None:
    """Prints how many steps are right, word for word, where what they need is shown; names are held out."""
    config = PolicyConfig(adapter=adapter, temperature=0.0, max_tokens=64)
    async with open_policy(config, TRANSCRIPT) as policy:
        for name, world in GATES.items():
            right: dict[str, list[bool]] = {}
            for row in await rows_of(world, out / "gates" / name, world.questions(count, name="gate")):
                said = (await policy.sample(row.prompt, ALLOWED[row.action], n=1, seed=0)).completions[0]
                kind = f"later {row.action}" if row.action == "query" and row.depth > 1 else row.action
                right.setdefault(kind, []).append(is_right(said, row))
            shares = [
                f"{kind} {sum(each)} of {len(each)} ({sum(each) / len(each):.0%})" for kind, each in right.items()
            ]
            say(f"village: {name}: {', '.join(shares)}")


def is_right(said: Completion, row: Trajectory) -> bool:
    """Whether a completion is the row's step, whatever thought stands before it."""
    allowed = ALLOWED[row.action]
    wanted = TRANSCRIPT.parse(Completion(row.completion[0]["content"], "written"), allowed)
    try:
        step = TRANSCRIPT.parse(said, allowed)
    except StepFormatError:
        return False
    return (step.action, normalise(step.content)) == (wanted.action, normalise(wanted.content))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("lessons", nargs="*", default=[lesson.name for lesson in LESSONS])
    parser.add_argument("--gates", metavar="STAGE")
    parser.add_argument("--count", type=int, default=24)
    given = parser.parse_args()
    if given.gates:
        adapter = given.folder / given.gates / "model"
        asyncio.run(gates(str(adapter) if adapter.exists() else given.gates, given.folder, given.count))
        return
    for lesson in LESSONS:
        if lesson.name in given.lessons:
            taught(lesson, given.folder)


if __name__ == "__main__":
    main()
