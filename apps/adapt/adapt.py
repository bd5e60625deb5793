"""`steprag adapt FOLDER`: from documents to an agent trained on them, with a proof on documents never trained on.

Each stage is a command that anyone can type, with a run folder of its own below `--out`: what is finished is reused,
an interrupted run resumes, and no call is paid for twice. The agent ends in `agent`, the proof in `report.html`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from apps.adapt.questions import TRAINED, QuestionsConfig
from apps.adapt.report import write_report
from apps.reproduce.contenders import SOUND
from apps.reproduce.options import fast
from apps.reproduce.stages import Contender, Pipeline, Stage, compare, stage
from data_generation.config import GenerateConfig
from data_generation.plan import planned
from steprag.batch.forecast import likely_usage, most_usage
from steprag.config.load import add_options, config_from, load_config, parse_arguments
from steprag.config.recipes import RECIPES, RUNS, stem_of
from steprag.config.sections import EpisodeConfig, PolicyConfig, PriceConfig, Section
from steprag.console.progress import say, say_next
from steprag.engines.models import EMBEDDED
from steprag.engines.threads import spin_briefly
from steprag.errors import PART_DONE, BudgetReached, StepragError, counted
from steprag.policy.budget import dollars
from steprag.records.jsonl import existing
from steprag.records.yaml_files import read_yaml
from steprag.runs.run import locked, read_manifest
from steprag.types import Question, Usage

LABEL = "apps.adapt.gates:by_facts"
ROWS = {"sft": "sft.train", "dpo": "pairs.train"}
"""What a training learns from, as the pairs folder counts it."""
GPT_4O = RECIPES / "generation/gpt-4o.yaml"
"""The recipe whose price every forecast and report states too."""


class StudentConfig(Section):
    """The agent that is trained: where its recipes start from, and what serves it."""

    sft: str = Field(default="atlas-sft", description="recipe of supervised training; it names the untrained model")
    dpo: str = Field(default="atlas-dpo", description="recipe of DPO, on top of that")
    engine: Literal["llamacpp", "vllm", "transformers"] = Field(default="llamacpp", description="what serves it")


class AdaptConfig(QuestionsConfig):
    """`steprag adapt`: the policy that writes the questions and plays the trees, and the student that learns."""

    student: StudentConfig = Field(default_factory=StudentConfig)
    episode: EpisodeConfig = Field(default_factory=EpisodeConfig)
    trees: str | None = Field(default=None, description="recipe of the search; none: atlas where templates write")
    encoder: str | None = Field(default="minilm", description="encoder, as for steprag index build; none: BM25 alone")


def main(argv: list[str]) -> int:
    about = "Your documents to a trained agent, with a proof."
    parser = argparse.ArgumentParser(prog="steprag adapt", description=about)
    parser.add_argument("folder", metavar="FOLDER", help="documents, or any corpus that steprag index build takes")
    where = "folder of all runs: index, agent, report.html [runs/adapt-FOLDER]"
    parser.add_argument("--out", metavar="DIR", help=where)
    parser.add_argument("--plan", action="store_true", help="say what it will cost, and stop")
    add_options(parser, AdaptConfig)
    given = parse_arguments(parser, argv)
    out = Path(given.out or f"{RUNS}/adapt-{stem_of(given.folder)}")
    adaptation = Adaptation(given.folder, out, config_from(AdaptConfig, given))
    sys.stdout.write(adaptation.price())
    if given.plan:
        say_next("adapt", *(word for word in argv if word != "--plan"))
        return 0
    spin_briefly()  # before a stage loads torch
    out = adaptation.out
    with locked(out):
        contenders = adaptation.run()
        compared, stages = compare(contenders, out / "compare"), adaptation.pipeline
        page = write_report(out, contenders, compared, stages, adaptation.bills(), failed=adaptation.failed)
    sys.stdout.write(f"{page}\n")
    say_next("serve", out / "index", *(("--model", out / "agent") if adaptation.kinds else ()))
    return PART_DONE if adaptation.failed or not adaptation.kinds else 0


def options_of(section: BaseModel, prefix: str = "", within: Collection[str] | None = None) -> Iterator[str]:
    """The keys that were set, as options of another command; only those `within` its keys."""
    for name in sorted(section.model_fields_set & {*(within or type(section).model_fields)}):
        value: Any = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from options_of(value, f"{prefix}{name}.")
        else:
            shown = value if isinstance(value, str) else "none" if value is None else json.dumps(value)
            yield from (f"--{prefix}{name}", shown)


@dataclass(frozen=True)
class Adaptation:
    """One folder's way to an agent; the stages' run folders are below `out`."""

    folder: str
    out: Path
    config: AdaptConfig
    begun: float = field(default_factory=time.monotonic)

    @cached_property
    def pipeline(self) -> Pipeline:
        """What runs the stages and keeps what was typed."""
        return Pipeline(self.out)

    @property
    def failed(self) -> bool:
        """Whether requests for trees failed, which may succeed another time."""
        return read_manifest(self.out / "trees").get("status") == "partial"

    @property
    def kinds(self) -> list[str]:
        """The trainings for which the trees gave enough to learn from."""
        return [kind for kind, rows in ROWS.items() if self.learnt.get(rows, 0) >= self.config.least]

    @property
    def learnt(self) -> dict[str, int]:
        """What the pairs folder counts."""
        return read_manifest(self.out / "pairs").get("counts", {})

    def run(self) -> list[Contender]:
        """All stages; returns who answered the test questions. Raises BudgetReached, StepragError."""
        out, run, config = self.out, self.pipeline.run, self.config
        built = ("index build", "--hybrid", "--encoder", config.encoder or "none")
        asked = options_of(config, within=QuestionsConfig.model_fields.keys() - {"budget"})
        run(stage(out / "index", *built, corpus=self.folder))
        run(stage(out / "questions", "adapt questions", *asked, *self._left({}), index=out / "index"))
        if read_manifest(out / "questions").get("status") == "partial":
            raise StepragError(f"requests for questions failed: {out / 'questions/failures.jsonl'} says why; run the "
                               "command again: what fails twice is left out")  # fmt: skip
        run(stage(out / "index-train", *built, corpus=out / "questions" / TRAINED))  # no document that is tested on
        recipe = ("--config", self.recipe) if self.recipe else ()
        policy = (*options_of(config.policy, "policy."), *options_of(config.prompt, "prompt."))
        left = self._left(read_manifest(out / "questions").get("spent") or {})
        run(stage(out / "trees", "generate", *recipe, *policy, *self._playing(), *left,
                  questions=out / "questions/train.jsonl", index=out / "index-train"))  # fmt: skip
        run(stage(out / "pairs", "pairs", *SOUND, "--label.name", LABEL, "--validation", "0", trees=out / "trees"))
        for each in self._training():
            run(each)
        contenders, student = self._contenders(), config.student
        served = ("--policy.engine", student.engine, "--policy.concurrency", "24" if student.engine == "vllm" else "6")
        for each in contenders:
            run(stage(each.run, "infer", *each.options, *served, *self._playing(),
                      questions=out / "questions/test.jsonl", index=out / "index"))  # fmt: skip
        return contenders

    @property
    def recipe(self) -> str | None:
        """The recipe of the search."""
        return self.config.trees or (None if self.config.by_policy else "atlas")

    def _search(self) -> dict[str, Any]:
        """What recipe and options say of the search."""
        said = _recipe("generation", self.recipe) if self.recipe else {}
        given = self.config.model_dump(include={"policy", "prompt", "episode"}, exclude_unset=True)
        return {**said, **{name: {**said.get(name, {}), **keys} for name, keys in given.items()}}

    def _playing(self) -> list[str]:
        """Options of every command that plays."""
        return [*options_of(self.config.retriever, "retriever."), *options_of(self.config.episode, "episode.")]

    def _left(self, spent: dict[str, Any]) -> Iterator[str]:
        """What the stages so far left of the budget, as options of the next; minutes are those of this process.

        Raises BudgetReached where it is nothing.
        """
        used = {**spent, "tokens": spent.get("prompt_tokens", 0) + spent.get("completion_tokens", 0),
                "minutes": (time.monotonic() - self.begun) / 60}  # fmt: skip
        for name, limit in self.config.budget.model_dump(exclude_none=True).items():
            left = limit - (used.get(name) or 0)
            if left <= 0:
                raise BudgetReached(f"budget.{name}: what came before took it all; raise it and run the command again")
            yield from (f"--budget.{name}", str(left) if name in ("calls", "tokens") else f"{left:.6f}")

    def _training(self) -> Iterator[Stage]:
        """SFT, then DPO on top of it, as far as there is something to learn from; the last one makes `agent`."""
        below: list[str] = []
        for kind in self.kinds:
            recipe = vars(self.config.student)[kind]
            out = self.out / ("agent" if kind == self.kinds[-1] else kind)
            yield stage(out, "train", *fast(), *below, config=recipe, pairs=self.out / "pairs")
            below = ["--model" if _recipe("training", recipe).get("finetuning") == "full" else "--adapter", str(out)]
        if not below:
            found = ", ".join(f"{counted(self.learnt.get(rows, 0), 'row')} for {kind}" for kind, rows in ROWS.items())
            say(f"adapt: the trees gave too little to learn from ({found}; --least {self.config.least}); ask for more "
                "--questions, or give a stronger policy (--base_url, --model)")  # fmt: skip

    def _contenders(self) -> list[Contender]:
        """Who answers the test questions: three baselines, and the agent where one was trained."""
        start = _recipe("training", self.config.student.sft)
        model, one = ("--policy.model", str(start.get("model", EMBEDDED))), ("--prompt.examples", "1")
        begins = ("--policy.adapter", str(start["adapter"])) if start.get("adapter") else ()
        prompt = load_config(GenerateConfig, base=self._search()).prompt  # the agent plays with those that it learns
        agent = ("--prompt.profile", prompt.profile, "--prompt.examples", str(prompt.examples))
        told = {
            "bare": ("the bare model, without your documents", (*model, "--prompt.profile", "direct", *one)),
            "rag": ("one search, then an answer", (*model, "--prompt.profile", "rag", *one)),
            "untrained": ("the untrained agent", (*model, *begins, *agent)),
            "trained": ("the trained agent", ("--policy.model", str(self.out / "agent"), *agent)),
        }
        return [Contender(label, self.out / name, options) for name, (label, options) in told.items()
                if name != "trained" or self.kinds]  # fmt: skip

    def price(self) -> str:
        """What is said before anything is spent. Raises ConfigError for a recipe that is not."""
        for kind in ROWS:
            _recipe("training", vars(self.config.student)[kind])
        who = "the policy writes" if self.config.by_policy else "templates make"
        told = [f"{who} the questions; training and test run on this machine", *map(": ".join, self.forecast.items())]
        told += [self.bought()] if self.config.budget.usd else []
        return "".join(f"adapt: {line}\n" for line in told)

    def bought(self) -> str:
        """What the budget's dollars are likely to buy."""
        usd, config, price = self.config.budget.usd or 0, self.config, self.config.policy.cost
        each = dollars(self._uses(most=False), price if price.known else _gpt_4o()) / config.questions
        if not each:
            return f"${usd:g} is not needed: the policy runs on this machine"
        at = "your price" if price.known else "GPT-4o's price, as you gave none"
        part = f"{min(config.questions, int(usd / each))} of the {config.questions} questions to train on"
        return f"${usd:g} is likely to buy {part}, with their trees and the test, at {at}"

    def _uses(self, *, most: bool) -> Usage:
        """What questions and trees together use."""
        search = load_config(GenerateConfig, base=self._search())
        trees = planned(search, [Question("", "x" * 200, ("",))] * self.config.questions)
        return sum((most_usage if most else likely_usage)(trees).values(), self.config.use(most=most))

    @cached_property
    def forecast(self) -> dict[str, str]:
        """What questions and trees together are likely to cost, each question, and all at most."""
        likely = self.config.use(most=False)
        each = (
            {"likely for each question": self._each(likely, sum(self.config.wanted.values()))} if likely.calls else {}
        )
        return {"likely": self.bill(self._uses(most=False)), **each, "at most": self.bill(self._uses(most=True))}

    def bills(self) -> dict[str, str]:
        """What was told beforehand, and what was used."""
        told = {f"told beforehand, {name}": bill for name, bill in self.forecast.items()}
        for name, words in {"questions": "questions", "trees": "attempts at them, to learn from"}.items():
            manifest = read_manifest(self.out / name)
            if spent := manifest.get("spent"):
                use = Usage(**{key: spent[key] for key in vars(Usage()) if key in spent})
                told[f"used for {words}"] = self.bill(use)
                if name == "questions":
                    told["used for each question that passed"] = self._each(use, sum(manifest["counts"].values()))
        return told

    def _each(self, use: Usage, passed: int) -> str:
        """The bill of each of the questions that passed, or will."""
        bill = self.bill(Usage(*(round(key / passed) for key in use.shown.values())), digits=4)
        return f"{bill}; {100 * passed / use.calls:.1f} such questions per 100 calls"

    def bill(self, use: Usage, digits: int = 2) -> str:
        """Calls, tokens and dollars: at the price that is given, where one is, and at GPT-4o's."""
        price = self.config.policy.cost
        own = f", ${dollars(use, price):,.{digits}f}" if price.known else ""
        other = dollars(use, _gpt_4o())
        tokens = f"{use.prompt_tokens:,} prompt and {use.completion_tokens:,} completion tokens"
        return f"{counted(use.calls, 'call')}, {tokens}{own}; at GPT-4o's price ${other:,.{digits}f}"


@cache
def _gpt_4o() -> PriceConfig:
    """GPT-4o's price."""
    return PolicyConfig(**read_yaml(GPT_4O)["policy"]).price


def _recipe(kind: str, name: str) -> dict[str, Any]:
    """What a recipe of ours, or a file, says."""
    named = RECIPES / kind / f"{name}.yaml"
    return read_yaml(named if named.is_file() else existing(name, "recipe"))
