"""`steprag reproduce`: does training on steps help? One warm start, one test split, one report.

The stages are commands that anyone can type (the report lists them), each with its own run folder, so an interrupted
run resumes. Search and training see Atlas's train split alone: its questions, the golden answers and, for guessable
questions, the marked passages.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from apps.reproduce.contenders import (
    LABELS,
    RULES,
    UNTRAINED,
    Proof,
    QuestionSet,
    Sizes,
    elsewhere,
    the_contenders,
)
from apps.reproduce.options import fast, lanes_asked, proof_parser, recipe, sizes_asked
from apps.reproduce.report import write_report
from apps.reproduce.stages import Contender, Pipeline, Stage, stage
from steprag import atlas
from steprag.config.load import parse_arguments
from steprag.config.recipes import RECIPES
from steprag.console.progress import say_next
from steprag.engines.threads import spin_briefly
from steprag.errors import ConfigError
from steprag.records.inputs import read_questions
from steprag.records.jsonl import existing, read_json, write_json, write_records
from steprag.records.yaml_files import read_yaml
from steprag.runs.run import read_manifest
from steprag.types import Question

BELIEF = ("--search.score", "true", "--search.score_found", "false", "--reward.name", "gain")
"""How the searches go: by the policy's belief in what it kept and the answers together."""
TURNS = ("--grpo.gain", "0.3")
"""What reinforcement learning gets beside the outcomes that its recipe rewards."""
PASSES = 2
"""How often supervised training sees an episode that search found, and DPO a pair."""
DEMO_PASSES = 4
"""How often a warm start from few worked episodes sees each; the shipped one saw its 300 once."""


def main(argv: list[str]) -> int:
    parser = proof_parser(
        "steprag reproduce", "Does training on steps help? (Atlas)", "runs/reproduce", "results.md", Sizes
    )
    parser.add_argument(
        "--trees", type=Path, metavar="FILE",
        help="finished trees with beliefs of the first --train questions, by the warm start: the first round's",
    )  # fmt: skip
    parser.add_argument(
        "--also", nargs=2, action="append", default=[], type=Path, metavar=("QUESTIONS", "CORPUS"),
        help="other questions and their corpus, on which the warm start and the best agent meet; may be given again",
    )  # fmt: skip
    parser.add_argument(
        "--without", nargs="+", default=[], choices=list(LABELS)[1:], metavar="NAME",
        help=f"contenders that are not scored: {', '.join(list(LABELS)[1:])}",
    )  # fmt: skip
    given = parse_arguments(parser, argv)
    proof = Proof(
        out=Path(given.out),
        engine=given.engine,
        lanes=lanes_asked(given),
        sizes=sizes_asked(given, Sizes),
        without=tuple(given.without),
        also=tuple(QuestionSet(questions.stem, questions, corpus) for questions, corpus in given.also),
        trees=existing(given.trees, "trees") if given.trees else None,
    )
    spin_briefly()  # before a stage loads torch
    one_kind(proof)
    pipeline = Pipeline(proof.out, proof.lanes)
    run_stages(proof, pipeline)
    report = Path(given.report) if given.report else proof.out / "results.md"
    write_report(proof, report, pipeline)
    sys.stdout.write(f"{report}\n")
    say_next("view", proof.out)
    return 0


def one_kind(proof: Proof) -> None:
    """Raises ConfigError if this folder was begun with other questions or another engine."""
    sizes, file = proof.sizes, proof.out / "kind.json"
    kind = {"engine": proof.engine, "lanes": proof.lanes}
    kind |= {"demos": sizes.demos, "train": sizes.train, "second": sizes.second, "third": sizes.third}
    kind |= {"trees": str(proof.trees)} if proof.trees else {}
    old = {} if (proof.out / "stages.json").exists() else kind
    begun = read_json(file) if file.exists() else old
    if begun.keys() - {"trees"} != kind.keys() - {"trees"}:
        raise ConfigError(f"{proof.out} was begun by an older version; give another --out")
    if begun != kind:
        words = " ".join(f"--{name} {value}" for name, value in begun.items())
        raise ConfigError(f"{proof.out} was begun with {words}; give that again, or another --out")
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, kind)


def run_stages(proof: Proof, pipeline: Pipeline) -> None:
    """Index, warm start, rounds of search, every adapter and every score.

    Chains that do not need each other run side by side, and wait for each other before the next round's search.
    """
    out, sizes = proof.out, proof.sizes
    pipeline.run(stage(out / "index", "index build", corpus=atlas.path("corpus")))
    if sizes.demos:
        pipeline.together([warm_start(out, sizes.demos)])
    first, *later = the_questions(sizes)
    trees = [str(proof.trees)] if proof.trees else search(pipeline, proof, 1, first, adapter=proof.warm)
    label(pipeline, proof, 1, trees)
    pipeline.together([learn(proof, 1), *arms(pipeline, proof, trees), *(score(proof, name) for name in UNTRAINED)])
    scores = [score(proof, "sft1"), score(proof, "dpo1")]
    for number, questions in enumerate(later, 2):
        trees += search(pipeline, proof, number, questions, adapter=str(out / f"dpo{number - 1}"))
        label(pipeline, proof, number, trees)
        pipeline.together([learn(proof, number), *scores])
        scores = [score(proof, f"dpo{number}")]
    pipeline.together(
        [[*reinforced(proof, later[-1]), *score(proof, "grpo")], *scores] if "grpo" in proof.scored else scores
    )
    score_elsewhere(proof, pipeline)


def label(pipeline: Pipeline, proof: Proof, number: int, trees: Sequence[str]) -> None:
    """The pairs and supervised steps of all rounds' trees, by gain."""
    pipeline.run(stage(proof.out / f"pairs{number}", "pairs", *RULES["gain"], "--trees", *trees))


def arms(pipeline: Pipeline, proof: Proof, trees: Sequence[str]) -> list[list[Stage]]:
    """A chain for every arm that is scored: SFT, DPO on top of it, and its score, as many steps of both in each."""
    out, sizes = proof.out, proof.sizes
    names = [name for name in RULES if name in proof.scored]
    pairs = {name: f"pairs-{name}" for name in names}
    for name in names:
        pipeline.run(stage(out / pairs[name], "pairs", *RULES[name], "--trees", *trees))
    sft, dpo = (
        min((steps_of(kind, out / each, sizes, 1) for each in pairs.values()), default=0) for kind in ("sft", "dpo")
    )
    return [
        [
            train(out, f"sft-{name}", "sft", pairs=pairs[name], adapter=proof.warm, steps=sft),
            train(out, name, "dpo", pairs=pairs[name], adapter=str(out / f"sft-{name}"), steps=dpo),
            *score(proof, name),
        ]
        for name in names
    ]


def learn(proof: Proof, number: int) -> list[Stage]:
    """The adapters of a round: SFT on top of the warm start, then DPO on top of that, on all rounds' trees.

    Each starts from the warm start, as ReST-EM from its base (arXiv 2312.06585), on the data of all rounds: the second
    round alone, on top of the first round's policy, lost the first gain (docs/figures/results.md).
    """
    out, sizes, pairs = proof.out, proof.sizes, proof.out / f"pairs{number}"
    sft, dpo = (steps_of(kind, pairs, sizes, number) for kind in ("sft", "dpo"))
    return [
        train(out, f"sft{number}", "sft", pairs=pairs.name, adapter=proof.warm, steps=sft),
        train(out, f"dpo{number}", "dpo", pairs=pairs.name, adapter=str(out / f"sft{number}"), steps=dpo),
    ]


def reinforced(proof: Proof, questions: list[Question]) -> list[Stage]:
    """GRPO with turn rewards on top of both rounds, on the last round's questions."""
    out = proof.out
    write_records(out / "grpo.jsonl", questions)
    return [
        stage(out / "grpo", "train", *fast(), *TURNS, config=recipe("grpo"), questions=out / "grpo.jsonl",
              index=out / "index", adapter=out / "dpo2", max_steps=proof.sizes.grpo)
    ]  # fmt: skip


def warm_start(out: Path, demos: int) -> list[Stage]:
    """The adapter `warm`, from Atlas' first worked episodes."""
    return [
        stage(out / "worked", "trees worked", episodes=atlas.path("warmstart"), limit=demos,
              corpus=atlas.path("corpus"), index=out / "index"),
        stage(out / "warm", "train", *fast(), config=recipe("warmstart"), pairs=out / "worked", epochs=DEMO_PASSES),
    ]  # fmt: skip


def the_questions(sizes: Sizes) -> list[list[Question]]:
    """The train split's first questions, and those that follow, for each round. Raises ConfigError."""
    questions, rounds = read_questions(atlas.path("train")), [sizes.train, sizes.second, sizes.third]
    if sum(rounds) > len(questions):
        raise ConfigError(
            f"Atlas has {len(questions)} questions to train on; --train, --second and --third ask for {sum(rounds)}"
        )
    rest = iter(questions)
    return [list(islice(rest, size)) for size in rounds if size]


def search(pipeline: Pipeline, proof: Proof, number: int, questions: list[Question], *, adapter: str) -> list[str]:
    """Searches a round's `questions`, in one run a lane. Returns the run folders."""
    out, name = proof.out, f"search{number}"
    size = math.ceil(len(questions) / proof.lanes)
    starts = range(0, len(questions), size)
    folders = [out / (f"{name}-{part}" if proof.lanes > 1 else name) for part in range(1, len(starts) + 1)]
    out.mkdir(parents=True, exist_ok=True)
    for folder, start in zip(folders, starts, strict=True):
        write_records(folder.with_suffix(".jsonl"), questions[start : start + size])
    pipeline.together([
        [stage(folder, "generate", *proof.served, *BELIEF, "--policy.adapter", adapter,
               config=RECIPES / "generation/atlas.yaml", questions=folder.with_suffix(".jsonl"), index=out / "index")]
        for folder in folders
    ])  # fmt: skip
    return [str(folder) for folder in folders]


def train(out: Path, name: str, kind: str, *, pairs: str, adapter: str, steps: int) -> Stage:
    """Training of the adapter `name` by the recipe of its kind, sft or dpo."""
    return stage(out / name, "train", *fast(), config=recipe(kind), pairs=out / pairs, adapter=adapter, max_steps=steps)


def one_pass(pairs: Path, kind: str) -> int:
    """Steps of the kind's recipe that see every row of the folder `pairs` once. Raises ConfigError without rows."""
    product = {"sft": "sft", "dpo": "pairs"}[kind]
    count = read_manifest(pairs)["counts"].get(f"{product}.train", 0)
    if not count:
        raise ConfigError(f"{pairs} holds nothing to train on by {kind}; search more questions (--train)")
    return max(1, count // read_yaml(recipe(kind))["batch_size"])


def steps_of(kind: str, pairs: Path, sizes: Sizes, rounds: int) -> int:
    """Steps of SFT or DPO: as many a round as the sizes say, PASSES over the rows at most."""
    return min(rounds * getattr(sizes, f"{kind}_steps"), PASSES * one_pass(pairs, kind))


def score(proof: Proof, name: str) -> list[Stage]:
    """The contender's answers to the test questions; nothing where it is not to be scored."""
    asked = "--dataset_name", "atlas"
    return [
        answers(proof, contender, *asked, index=proof.out / "index", limit=proof.sizes.test)
        for contender in the_contenders(proof, {name} & set(proof.scored))
    ]


def score_elsewhere(proof: Proof, pipeline: Pipeline) -> None:
    """Indexes every other set's corpus and has its contenders answer."""
    for questions in proof.also:
        index = proof.out / f"index-{questions.name}"
        pipeline.run(stage(index, "index build", corpus=questions.corpus))
        asked = "--questions", str(questions.questions)
        pipeline.together([
            [answers(proof, contender, *asked, index=index, limit=proof.sizes.elsewhere)]
            for contender in elsewhere(proof, questions)
        ])  # fmt: skip


def answers(proof: Proof, contender: Contender, *questions: str, index: Path, limit: int) -> Stage:
    """Inference of a contender on the first `limit` questions; `questions` are the options that name them."""
    return stage(
        contender.run, "infer", *proof.served, *contender.options, *questions,
        config=RECIPES / "inference/demo.yaml", index=index, limit=limit,
    )  # fmt: skip
