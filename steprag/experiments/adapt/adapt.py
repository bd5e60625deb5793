"""`steprag adapt FOLDER`: from a folder of documents to an agent trained on it, with a proof on documents never trained on.

Each stage is a command that anyone can type, with a run folder of its own below `--out`: what is finished is reused,
an interrupted run goes on, and no call is paid twice. The agent ends in `agent`, the proof in `report.html`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from data_generation.config import GenerateConfig
from data_generation.plan import likely_usage, most_calls, most_usage
from steprag.config.load import RECIPES, add_options, config_from, load_config, parse_arguments
from steprag.config.sections import EpisodeConfig, PolicyConfig, PriceConfig, Section
from steprag.console.progress import say
from steprag.engines.threads import spin_briefly
from steprag.errors import PART_DONE, BudgetReached
from steprag.experiments.adapt.questions import TRAINED, QuestionsConfig
from steprag.experiments.contenders import SOUND
from steprag.experiments.options import fast
from steprag.experiments.stages import Contender, Pipeline, Stage, compare, stage
from steprag.policy.budget import dollars
from steprag.records.jsonl import existing
from steprag.records.yaml_files import read_yaml
from steprag.runs.run import locked, read_manifest
from steprag.types import Question, Usage

LABEL = "steprag.experiments.adapt.labels:by_facts"
TRIED = 1.5
"""Paths that a question is likely to take."""
ROWS = {"sft": "sft.train", "dpo": "pairs.train"}
"""What a training learns from, as the pairs folder counts it."""
GPT_4O = "generation/gpt-4o.yaml"
"""The recipe whose price every forecast and report states beside the price that is given."""


class StudentConfig(Section):
    """The agent that is trained: where its recipes start from, and what serves it."""

    sft: str = Field(
        default="atlas-sft", description="recipe of supervised training: its model and adapter are untrained"
    )
    dpo: str = Field(default="atlas-dpo", description="recipe of DPO, on top of that")
    engine: str = Field(
        default="llamacpp", description="what serves the model for the test: llamacpp, vllm, transformers"
    )
    concurrency: int = Field(default=6, ge=1, description="requests in flight at once, in the test")


class AdaptConfig(QuestionsConfig):
    """`steprag adapt`: the policy that writes the questions and plays the trees, and the student that learns."""

    student: StudentConfig = StudentConfig()
    episode: EpisodeConfig = EpisodeConfig()
    trees: str | None = Field(default=None, description="recipe of the search; none: atlas where templates write")
    encoder: str | None = Field(default="minilm", description="encoder, as for steprag index build; none: BM25 alone")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="steprag adapt", description="Your documents to a trained agent, with a proof."
    )
    parser.add_argument("folder", metavar="FOLDER", help="documents, or any corpus that steprag index build takes")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of all runs: index, agent, report.html")
    parser.add_argument("--plan", action="store_true", help="say what it will cost, and stop")
    add_options(parser, AdaptConfig)
    given = parse_arguments(parser, argv)
    adaptation = Adaptation(given.folder, Path(given.out), config_from(AdaptConfig, given))
    sys.stdout.write(adaptation.price())
    if given.plan:
        return 0
    from steprag.experiments.adapt.report import write_report

    spin_briefly()  # before a stage loads torch
    with locked(adaptation.out):
        contenders = adaptation.run()
        report = write_report(adaptation, contenders, compare(contenders, adaptation.out / "compare"))
    sys.stdout.write(f"{report}\n\n    steprag serve --index {adaptation.out / 'index'} --model {adaptation.agent}\n")
    return PART_DONE if adaptation.failed or not adaptation.trained else 0


def options_of(section: BaseModel, names: set[str] | None = None, prefix: str = "") -> Iterator[str]:
    """The keys that were set, or those of `names`, as options of another command."""
    for name in sorted(section.model_fields_set & (names or section.model_fields_set)):
        value: Any = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from options_of(value, prefix=f"{prefix}{name}.")
        else:
            shown = value if isinstance(value, str) else "none" if value is None else json.dumps(value)
            yield from (f"--{prefix}{name}", shown)


@dataclass(frozen=True)
class Adaptation:
    """One folder's way to an agent; the stages' run folders are below `out`."""

    folder: str
    out: Path
    config: AdaptConfig

    @property
    def agent(self) -> Path:
        """The trained agent, as `--model` takes it."""
        return self.out / "agent"

    @cached_property
    def pipeline(self) -> Pipeline:
        return Pipeline(self.out)

    @property
    def failed(self) -> bool:
        """Whether questions failed, whose requests may succeed another time."""
        return any(read_manifest(self.out / name).get("status") == "partial" for name in ("questions", "trees"))

    @property
    def trained(self) -> bool:
        """Whether the trees gave something to learn from."""
        return any(self._rows(kind) for kind in ROWS)

    def run(self) -> list[Contender]:
        """All stages; returns who answered the test questions. Raises BudgetReached, StepragError."""
        out, run = self.out, self.pipeline.run
        shared = ("--hybrid", "--encoder", self.config.encoder or "none")
        run(stage(out / "index", "index build", *shared, corpus=self.folder))
        run(stage(out / "questions", "adapt questions", *self._question_options(), index=out / "index"))
        run(stage(out / "index-train", "index build", *shared, corpus=out / "questions" / TRAINED))
        run(self._search())
        run(stage(out / "pairs", "pairs", *SOUND, "--label.name", LABEL, "--validation", "0", trees=out / "trees"))
        for each in self._training():
            run(each)
        contenders = self.contenders()
        for contender in contenders:
            run(self._answers(contender))
        return contenders

    def _question_options(self) -> list[str]:
        return [*options_of(self.config, {*QuestionsConfig.model_fields})]

    def _search(self) -> Stage:
        """Trees of the questions to train on, in an index without any document that is tested on."""
        recipe = ("--config", self._recipe) if self._recipe else ()
        options = (*recipe, *options_of(self.config.policy, prefix="policy."), *self._shared())
        return stage(self.out / "trees", "generate", *options, *self._left(),
                     questions=self.out / "questions/train.jsonl", index=self.out / "index-train")  # fmt: skip

    @property
    def _recipe(self) -> str | None:
        return self.config.trees or (None if self.config.by_policy else "atlas")

    def _shared(self) -> list[str]:
        """Options of every command that plays the agent."""
        return [
            *options_of(self.config.retriever, prefix="retriever."),
            *options_of(self.config.episode, prefix="episode."),
        ]

    def _left(self) -> list[str]:
        """What the questions left of the budget, as options of the search. Raises BudgetReached where that is nothing."""
        spent: dict[str, Any] = read_manifest(self.out / "questions").get("spent") or {}
        used = {"usd": spent.get("usd") or 0, "calls": spent.get("calls", 0),
                "tokens": spent.get("prompt_tokens", 0) + spent.get("completion_tokens", 0)}  # fmt: skip
        left = {
            name: limit - used.get(name, 0) for name, limit in self.config.budget.model_dump(exclude_none=True).items()
        }
        if done := next((name for name, rest in left.items() if rest <= 0), None):
            raise BudgetReached(f"budget.{done}: the questions took it all; raise it and run the same command to go on")
        return [
            word
            for name, rest in left.items()
            for word in (f"--budget.{name}", f"{rest:.6g}" if name == "usd" else str(rest))
        ]

    def _rows(self, kind: str) -> int:
        return read_manifest(self.out / "pairs").get("counts", {}).get(ROWS[kind], 0)

    def _training(self) -> list[Stage]:
        """SFT, then DPO on top of it, as far as there is something to learn from; the last one makes `agent`."""
        kinds = [kind for kind in ROWS if self._rows(kind)]
        if not kinds:
            say("adapt: the trees gave no pair and no episode to learn from; more --questions, or a stronger policy")
        stages, below = list[Stage](), list[str]()
        for kind in kinds:
            recipe = vars(self.config.student)[kind]
            out = self.agent if kind == kinds[-1] else self.out / kind
            stages.append(stage(out, "train", *fast(), *below, config=recipe, pairs=self.out / "pairs"))
            below = ["--model" if _recipe_of(recipe).get("finetuning") == "full" else "--adapter", str(out)]
        return stages

    def contenders(self) -> list[Contender]:
        """Who answers the test questions: the three baselines, and the agent where one was trained."""
        start = _recipe_of(self.config.student.sft)
        bare = ("--policy.model", str(start.get("model", "smollm2-135m-instruct")))
        adapter = ("--policy.adapter", str(start["adapter"])) if start.get("adapter") else ("--prompt.examples", "2")
        told = {
            "bare": (
                "the bare model, without your documents",
                (*bare, "--prompt.profile", "direct", "--prompt.examples", "1"),
            ),
            "rag": ("one search, then an answer", (*bare, "--prompt.profile", "rag", "--prompt.examples", "1")),
            "untrained": ("the untrained agent", (*bare, *adapter)),
            "trained": ("the trained agent", ("--policy.model", str(self.agent))),
        }
        return [Contender(label, self.out / name, options) for name, (label, options) in told.items()
                if name != "trained" or self.trained]  # fmt: skip

    def _answers(self, contender: Contender) -> Stage:
        student = self.config.student
        served = ("--policy.engine", student.engine, "--policy.concurrency", str(student.concurrency))
        return stage(contender.run, "infer", *contender.options, *served, *self._shared(),
                     questions=self.out / "questions/test.jsonl", index=self.out / "index")  # fmt: skip

    def price(self) -> str:
        """What questions and trees will cost, before anything is spent."""
        config = self.config
        search = load_config(GenerateConfig, str(_file("generation", self._recipe)) if self._recipe else None,
                             {}, {"policy": config.policy.model_dump(include=config.policy.model_fields_set)})  # fmt: skip
        asked = [Question("", "x" * 200, ("",))] * config.questions
        uses = {
            "likely": config.most_use(TRIED) + sum(likely_usage(search, config.questions).values(), Usage()),
            "at most": config.most_use() + sum(most_usage(search, most_calls(search), asked).values(), Usage()),
        }
        lines = [f"adapt: {words} {bill(use, config.policy.cost)}" for words, use in uses.items()]
        who = "the policy writes the questions" if config.by_policy else "templates over extracted facts make questions"
        return "\n".join([f"adapt: {who}; training and test run on this machine", *lines, ""])


def bill(use: Usage, price: PriceConfig) -> str:
    """Calls, tokens and dollars: at the price that is given, where one is, and at GPT-4o's."""
    own = f", ${dollars(use, price):,.2f}" if price.known else ""
    cost = f"{own}; at GPT-4o's price ${dollars(use, gpt_4o()):,.2f}"
    return f"{use.calls:,} calls, {use.prompt_tokens:,} prompt and {use.completion_tokens:,} completion tokens{cost}"


def gpt_4o() -> PriceConfig:
    """The price of GPT-4o that its recipe states."""
    return PolicyConfig(**read_yaml(RECIPES / GPT_4O)["policy"]).price


def _file(kind: str, recipe: str) -> Path:
    named = RECIPES / kind / f"{recipe}.yaml"
    return named if named.is_file() else existing(recipe, "recipe")


def _recipe_of(name: str) -> dict[str, Any]:
    return read_yaml(_file("training", name))
