"""What stage grpo plays in: questions, environment, judge, and a journal of all that is asked and searched."""

from __future__ import annotations

import asyncio
import os
import random
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from indexes import open_retriever
from steprag.agent.checkpoints import profile_for
from steprag.agent.compliance import Refusals, Said, refusals_told
from steprag.agent.environment import Environment
from steprag.agent.judge import TOKENS, VERDICTS_PROMPT, VerdictFormat, prompt_hash, prompt_of
from steprag.agent.open import make_environment
from steprag.batch.journal import JOURNAL, Journal
from steprag.batch.worklist import model_asked
from steprag.console.progress import say
from steprag.engines.models import resolve_model
from steprag.errors import TrainingError
from steprag.extras import code_hash
from steprag.policy.budget import Spending
from steprag.policy.open import open_model
from steprag.records.inputs import read_questions
from steprag.records.jsonl import (
    LineJournal,
    drop_torn_line,
    existing,
    file_hash,
    read_rows,
    shaped,
    write_records,
)
from steprag.records.left_out import LeftOut
from steprag.runs.run import Run
from steprag.types import Question
from training.config import TrainConfig
from training.play.episodes import APART, Group, Judged, Sampling, play
from training.play.judging import EpisodeJudge, judged_terms
from training.play.turn_credit import check_labelled

EPISODES = "episodes.jsonl"
WINDOW = 8
"""Steps among whose questions more than half have to be played, or the run ends."""
UNMOVED = 4
"""The step after which a run says that all its groups were dropped so far."""
FAILURES = 4
"""So many of them may fail in any case: where a step has one question, one failure is more than half of the first."""


@dataclass(frozen=True)
class World:
    """`identity`: what decides the episodes beyond the recipe's own section. `opened`: what `open_world` was given, the
    question file and the index, for other processes that play. `gone`: what of the questions was left out.
    """

    questions: list[Question]
    environment: Environment
    identity: dict[str, Any]
    opened: tuple[str, str] = ("", "")
    gone: Sequence[LeftOut] = ()


@contextmanager
def open_world(questions_file: str, index: str, config: TrainConfig) -> Iterator[World]:
    """Reads the questions and opens the index, which is closed with the block.

    Raises DataError, and ConfigError, also where the model was trained on other prompts (unless `prompt.unchecked`).

    The retriever's weights load with its first search: a run that is finished already needs none.
    """
    file = existing(questions_file, "question file")
    gone: list[LeftOut] = []
    questions = read_questions(file, gone=gone)
    check_labelled(questions, config.grpo)
    profile = profile_for(config.prompt, resolve_model(config.model, config.adapter))
    retriever = open_retriever(index, config.retriever.model_copy(update={"preload": False}))
    identity = {
        "data": {"questions": file_hash(file), "index": retriever.fingerprint},
        "prompt": profile.identity,
        "episode": config.episode.identity,
        "judge": _judge_identity(config, questions),
    }
    if code := {name: code_hash(name, "grpo.rewards") for name in config.grpo.rewards if ":" in name}:
        identity["rewards_code"] = code
    try:
        environment = make_environment(profile, retriever, config.episode)
        yield World(questions, environment, identity, (questions_file, index), gone)
    finally:
        asyncio.run(retriever.aclose())


def _judge_identity(config: TrainConfig, questions: list[Question]) -> dict[str, Any] | None:
    terms = judged_terms(config.grpo.rewards, questions)
    if not terms:
        return None
    identity = {**model_asked(config.judge), "prompt": prompt_hash(prompt_of(config.judge))}
    return identity | ({"verdicts": prompt_hash(VERDICTS_PROMPT)} if terms != {"judge"} else {})


@dataclass
class Tally:
    """The groups of a run so far: how many there were, whether one moved weights, and what their completions were."""

    groups: int = 0
    moved: bool = False
    refusals: Refusals = field(default_factory=Refusals)

    def add(self, line: dict[str, Any]) -> None:
        """Counts an episode as `_lines` writes it down."""
        self.moved = self.moved or line["advantage"] is not None or "gains" in line
        steps: list[Said] = [(None, text, None) for text in line["steps"]]
        refused = [] if line["refused"] is None else [(None, line["refused"], line["finish"])]
        self.refusals.add([*steps, *refused], line.get("reasoning", 0))

    @property
    def warning(self) -> str | None:
        """What to say where every group was dropped, so that no weight has moved."""
        if self.moved or not self.groups:
            return None
        counts, first, reasoning = self.refusals.counts, self.refusals.first, self.refusals.reasoning
        alike = "all episodes of a group were worth the same: take other questions, larger groups, a higher temperature"
        why = refusals_told(counts, first, reasoning) or alike
        return f"every group was dropped ({self.groups} of {self.groups}), no weight moved; {why}"


def resumed_tally(file: Path, done: int, questions: int) -> Tally:
    """The groups of a run that resumes after `done` steps, of so many `questions` each, counted in its `EPISODES`. The
    file loses what was written down of later steps, which are played again.
    """
    tally = Tally(done * questions, moved=done > 0 and not file.is_file())  # without the file nobody knows

    def kept() -> Iterator[dict[str, Any]]:
        for number, line in read_rows(file):
            with shaped(file, line=number, remedy="start again in another folder"):
                if line["step"] <= done:
                    tally.add(line)
                    yield line

    if file.is_file():
        drop_torn_line(file)
        write_records(file, kept())
    return tally


@dataclass(frozen=True)
class GrpoStage:
    """What episodes need beside the weights: the world, one event loop for retriever and judge, and the journal of
    searches and of the judge's replies, so that a run that resumes makes none twice.
    """

    world: World
    config: TrainConfig
    run: Run
    runner: asyncio.Runner
    journal: Journal
    judge: Judged | None
    tally: Tally
    recent: deque[list[str | None]] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def play(self, numbers: Sequence[int], how: Sampling, step: int, process: int) -> list[Group]:
        """The groups of the questions with these numbers. The run's seed, `step` and `process` decide the samples."""
        seed = random.Random(f"{self.config.seed} {step}").getrandbits(48)
        seed += APART * process * len(numbers) * (self.config.grpo.episodes + self.config.grpo.branch)
        questions = [self.world.questions[number] for number in numbers]
        kept = {one.id: self.journal.question(one) for one in questions}  # of this step alone: the journal has all
        playing = play(
            questions,
            self.world.environment,
            how,
            self.config.grpo,
            seed=seed,
            calls=lambda question: kept[question.id],
            judge=self.judge,
        )
        return self.runner.run(playing)

    def check(self, groups: Sequence[Group]) -> None:
        """Raises TrainingError where over half of the last questions, `FAILURES` or more, could not be played."""
        self.recent.append([group.failure for group in groups])
        failures = [failure for step in self.recent for failure in step if failure is not None]
        asked = sum(map(len, self.recent))
        if len(failures) >= FAILURES and 2 * len(failures) > asked:
            raise TrainingError(
                f"{len(failures)} of {asked} questions of the last steps could not be played: {failures[-1]}; "
                "mend that and start again"
            )

    def note(self, step: int, groups: Sequence[Group]) -> None:
        """Writes a step's episodes down; says which questions failed, and early that all groups were dropped."""
        with LineJournal(self.run.path / EPISODES) as journal:
            for line in (line for group in groups for line in _lines(step, group)):
                journal.append(line)
                self.tally.add(line)
        self.tally.groups += len(groups)
        if step == UNMOVED and (warning := self.tally.warning):
            say(f"train: step {step}: {warning}")
        for group in groups:
            if group.failure is not None:
                say(f"train: step {step}: the episodes of question {group.question.id} are dropped: {group.failure}")


def _lines(step: int, group: Group) -> Iterator[dict[str, Any]]:
    """What one reads to see what is being rewarded."""
    for number, episode in enumerate(group.episodes):
        yield {
            "step": step,
            "question": group.question.id,
            "finish": episode.finish,
            "steps": [each.text for each in episode.state.steps],
            "refused": episode.refused,
            "prediction": episode.prediction,
            "rewards": {name: values[number] for name, values in group.terms.items()},
            "reward": group.totals[number],
            "advantage": group.advantages[number] if group.advantages else None,
            **({"reasoning": episode.reasoning} if episode.reasoning else {}),
            **({"gains": group.gains[number]} if group.gains else {}),
            **({"fork": asdict(group.forks[number])} if group.forks and group.forks[number].shared else {}),
        }


@contextmanager
def staged(world: World, config: TrainConfig, run: Run, done: int = 0) -> Iterator[GrpoStage]:
    """The stage of a run that has made `done` steps; closes the retriever, and the judge's engine where it started one,
    with the block.
    """
    process = int(os.environ.get("RANK") or "0")
    file = run.path / (f"{process}-{JOURNAL}" if process else JOURNAL)  # each process that plays has one of its own
    tally = Tally() if process else resumed_tally(run.path / EPISODES, done, config.grpo.questions)
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        stack.push_async_callback(world.environment.retriever.aclose)
        try:
            terms, judge = judged_terms(config.grpo.rewards, world.questions), None
            if terms:
                asked = config.judge.model_copy(update={"max_tokens": max(config.judge.max_tokens, TOKENS)})
                model = runner.run(stack.enter_async_context(open_model(asked, VerdictFormat())))
                words = config.grpo.judge_gold, config.judge.temperature == 0, prompt_of(config.judge)
                judge = EpisodeJudge(model, terms, *words).read
            spending = Spending(config.budget.share(process, config.workers), {"judge": config.judge.cost})
            journal = runner.run(stack.enter_async_context(Journal(file, spending)))
            if terms:
                stack.callback(lambda: run.set(spent=spending.summary()))
            yield GrpoStage(world, config, run, runner, journal, judge, tally)
        finally:
            runner.run(stack.aclose())
