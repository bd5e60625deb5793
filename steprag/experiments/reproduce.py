"""`steprag reproduce`: does training on steps help? One warm start, one test split, one report.

The stages are commands that anyone can type (the report lists them), each with its own run folder, so an interrupted
run goes on. Search and training see questions of Atlas's train split alone: of those the golden answers and, where the
answer can be guessed, the marked passages.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from steprag import atlas
from steprag.cli import guarded
from steprag.config import parse_arguments
from steprag.engines.launch import vllm_is_for_cpus
from steprag.engines.threads import fast_dtype, spin_briefly, usable_cores
from steprag.errors import ConfigError
from steprag.experiments.arms import RULES
from steprag.experiments.contenders import LABELS, UNTRAINED, Proof, QuestionSet, Sizes, elsewhere, the_contenders
from steprag.experiments.lanes import Lanes
from steprag.experiments.report import write_report
from steprag.experiments.stages import RECIPES, Contender, Stage, StageBook, stage
from steprag.files import existing, read_json, write_json, write_records
from steprag.inputs import read_questions
from steprag.runs import read_manifest
from steprag.types import Question
from steprag.yaml_files import read_yaml

BELIEF = ("--search.score", "true", "--search.score_found", "false", "--reward.name", "gain")
"""How the searches go: by the policy's belief in what it kept and the answers together."""
TURNS = ("--grpo.gain", "0.3")
"""What reinforcement learning gets beside the outcomes that its recipe rewards."""
SFT_PASSES = 2
"""How often supervised training sees an episode that search found."""
DPO_PASSES = 2
"""How often DPO sees a pair."""
DEMO_PASSES = 4
"""How often a warm start from few worked episodes sees each; the shipped one saw its 300 once."""

FULL = Sizes(demos=20, train=100, second=60, third=0, test=540, sft_steps=64, dpo_steps=85, grpo=20,
             elsewhere=100)  # fmt: skip
QUICK = Sizes(demos=0, train=8, second=8, third=0, test=12, sft_steps=3, dpo_steps=4, grpo=1, elsewhere=4)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag reproduce", description="Does training on steps help? (Atlas)")
    parser.add_argument("--out", default="runs/reproduce", metavar="DIR", help="folder of the runs [runs/reproduce]")
    parser.add_argument("--report", metavar="FILE", help="where the report goes, its plots beside it [DIR/results.md]")
    parser.add_argument("--quick", action="store_true", help="sizes that show that it runs, and nothing else")
    for name, value in vars(FULL).items():
        text = f"{Sizes.HELP[name]} [{value}; quick {getattr(QUICK, name)}]"
        parser.add_argument(f"--{name}", type=int, metavar="N", help=text)
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
    parser.add_argument(
        "--engine", default="llamacpp", choices=("llamacpp", "vllm"), help="what serves the policies [llamacpp]"
    )
    parser.add_argument(
        "--lanes", type=int, metavar="N",
        help="stages that run side by side, each on its share of the cores [2 where there are as many; 1 on a GPU]",
    )  # fmt: skip
    given = parse_arguments(parser, argv)
    lanes = usual_lanes(given.engine) if given.lanes is None else given.lanes
    if lanes < 1:
        raise ConfigError("--lanes is 1 or more")
    usual = QUICK if given.quick else FULL
    sizes = the_sizes(given, usual)
    spin_briefly()  # before a stage loads torch
    out = Path(given.out)
    also = tuple(QuestionSet(questions.stem, questions, corpus) for questions, corpus in given.also)
    trees = existing(given.trees, "trees") if given.trees else None
    proof = Proof(out, sizes, tuple(given.without), also, given.engine, lanes, trees)
    one_kind(proof)
    book = StageBook(out / "stages.json", Lanes(proof.lanes))
    run_stages(proof, book)
    report = Path(given.report) if given.report else out / "results.md"
    write_report(proof, report, book)
    sys.stdout.write(f"{report}\n")
    return 0


def usual_lanes(engine: str) -> int:
    """Two servers of vLLM would each want most of one GPU's memory."""
    return 1 if engine == "vllm" and not vllm_is_for_cpus() else min(2, usable_cores())


def the_sizes(given: argparse.Namespace, usual: Sizes) -> Sizes:
    """Those asked for, and the usual ones for the rest. Raises ConfigError."""
    asked = {name: getattr(given, name) for name in vars(usual) if getattr(given, name) is not None}
    for name, value in asked.items():
        if value < (least := 0 if name in ("demos", "third", "grpo") else 1):
            raise ConfigError(f"--{name} is {least} or more")
    return replace(usual, **asked)


def one_kind(proof: Proof) -> None:
    """Raises ConfigError where what is in this folder was begun otherwise: on other questions, or by another engine."""
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


def run_stages(proof: Proof, book: StageBook) -> None:
    """Index, warm start, rounds of search, every adapter and every score.

    Chains that do not need each other run side by side, and wait for each other before the next round's search.
    """
    out, sizes = proof.out, proof.sizes
    book.run(stage(out / "index", "index build", corpus=atlas.path("corpus")))
    if sizes.demos:
        book.together([warm_start(out, sizes.demos)])
    first, *later = the_questions(sizes)
    trees = [str(proof.trees)] if proof.trees else search(book, proof, 1, first, adapter=proof.warm)
    label(book, proof, 1, trees)
    book.together([learn(proof, 1), *arms(book, proof, trees), *(score(proof, name) for name in UNTRAINED)])
    scores = [score(proof, "sft1"), score(proof, "dpo1")]
    for number, questions in enumerate(later, 2):
        trees += search(book, proof, number, questions, adapter=str(out / f"dpo{number - 1}"))
        label(book, proof, number, trees)
        book.together([learn(proof, number), *scores])
        scores = [score(proof, f"dpo{number}")]
    book.together(
        [[*reinforced(proof, later[-1]), *score(proof, "grpo")], *scores] if "grpo" in proof.scored else scores
    )
    score_elsewhere(proof, book)


def label(book: StageBook, proof: Proof, number: int, trees: Sequence[str]) -> None:
    """The pairs and supervised steps of all rounds' trees, by gain."""
    book.run(stage(proof.out / f"pairs{number}", "pairs", *RULES["gain"], "--trees", *trees))


def arms(book: StageBook, proof: Proof, trees: Sequence[str]) -> list[list[Stage]]:
    """A chain for every arm that is scored: SFT, DPO on top of it, and its score, as many steps of both in each."""
    out, sizes = proof.out, proof.sizes
    names = [name for name in RULES if name in proof.scored]
    pairs = {name: f"pairs-{name}" for name in names}
    for name in names:
        book.run(stage(out / pairs[name], "pairs", *RULES[name], "--trees", *trees))
    sft = min((sft_steps(out / each, sizes, 1) for each in pairs.values()), default=0)
    dpo = min((dpo_steps(out / each, sizes, 1) for each in pairs.values()), default=0)
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

    From the warm start, as ReST-EM from its base (arXiv 2312.06585), on all that was found: learnt on top of the first
    round's policy, the second round's alone lost what the first had gained (docs/results-shipped-start.md).
    """
    out, sizes, pairs = proof.out, proof.sizes, proof.out / f"pairs{number}"
    sft, dpo = sft_steps(pairs, sizes, number), dpo_steps(pairs, sizes, number)
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
        stage(out / "worked", "worked", episodes=atlas.path("warmstart"), limit=demos,
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


def search(book: StageBook, proof: Proof, number: int, questions: list[Question], *, adapter: str) -> list[str]:
    """Searches a round's `questions`, in one run a lane. Returns the run folders."""
    out, name = proof.out, f"search{number}"
    size = math.ceil(len(questions) / proof.lanes)
    starts = range(0, len(questions), size)
    folders = [out / (f"{name}-{part}" if proof.lanes > 1 else name) for part in range(1, len(starts) + 1)]
    out.mkdir(parents=True, exist_ok=True)
    for folder, start in zip(folders, starts, strict=True):
        write_records(folder.with_suffix(".jsonl"), questions[start : start + size])
    book.together([
        [stage(folder, "generate", *proof.served, *BELIEF, "--policy.adapter", adapter, once=True,
               config=RECIPES / "generation/atlas.yaml", questions=folder.with_suffix(".jsonl"), index=out / "index")]
        for folder in folders
    ])  # fmt: skip
    return [str(folder) for folder in folders]


def train(out: Path, name: str, kind: str, *, pairs: str, adapter: str, steps: int) -> Stage:
    """Training of the adapter `name` by the recipe of its kind, sft or dpo."""
    return stage(out / name, "train", *fast(), config=recipe(kind), pairs=out / pairs, adapter=adapter, max_steps=steps)


def fast() -> tuple[str, ...]:
    """Options that train in bfloat16, where this processor has instructions for it."""
    return ("--bf16", "true") if fast_dtype() == "bfloat16" else ()


def recipe(kind: str) -> Path:
    """The Atlas recipe of that kind (sft, dpo or grpo)."""
    return RECIPES / f"training/atlas-{kind}.yaml"


def one_pass(pairs: Path, kind: str) -> int:
    """Steps of the kind's recipe that see every row of the folder `pairs` once. Raises ConfigError without rows."""
    product = {"sft": "sft", "dpo": "pairs"}[kind]
    count = read_manifest(pairs)["counts"].get(f"{product}.train", 0)
    if not count:
        raise ConfigError(f"{pairs} holds nothing to train on by {kind}; search more questions (--train)")
    return max(1, count // read_yaml(recipe(kind))["batch_size"])


def sft_steps(pairs: Path, sizes: Sizes, rounds: int) -> int:
    """Steps of supervised training: as many a round as the sizes say, SFT_PASSES over the rows at most."""
    return min(rounds * sizes.sft_steps, SFT_PASSES * one_pass(pairs, "sft"))


def dpo_steps(pairs: Path, sizes: Sizes, rounds: int) -> int:
    """Steps of DPO: as many a round as the sizes say, DPO_PASSES over the pairs at most."""
    return min(rounds * sizes.dpo_steps, DPO_PASSES * one_pass(pairs, "dpo"))


def score(proof: Proof, name: str) -> list[Stage]:
    """The contender's answers to the test questions; nothing where it is not to be scored."""
    asked = "--dataset_name", "atlas"
    return [
        answers(proof, contender, *asked, index=proof.out / "index", limit=proof.sizes.test)
        for contender in the_contenders(proof, {name} & set(proof.scored))
    ]


def score_elsewhere(proof: Proof, book: StageBook) -> None:
    """Indexes every other set's corpus and has its contenders answer."""
    for questions in proof.also:
        index = proof.out / f"index-{questions.name}"
        book.run(stage(index, "index build", corpus=questions.corpus))
        asked = "--questions", str(questions.questions)
        book.together([
            [answers(proof, contender, *asked, index=index, limit=proof.sizes.elsewhere)]
            for contender in elsewhere(proof, questions)
        ])  # fmt: skip


def answers(proof: Proof, contender: Contender, *questions: str, index: Path, limit: int) -> Stage:
    """Inference of a contender on the first `limit` questions; `questions` are the options that name them."""
    return stage(
        contender.run, "infer", *proof.served, *contender.options, *questions,
        config=RECIPES / "inference/demo.yaml", index=index, limit=limit,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
