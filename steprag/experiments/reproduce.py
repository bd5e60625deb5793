"""`steprag reproduce`: does training on steps help? One warm start, one test split, one report.

The stages are commands that anyone can type (the report lists them), each with its own run folder, so an interrupted
run goes on. Search and training see questions of Atlas's train split alone, and of those the golden answers alone.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import yaml

from steprag import atlas
from steprag.cli import guarded
from steprag.config import parse_arguments
from steprag.engines.cpu import fast_dtype
from steprag.engines.launch import vllm_is_for_cpus
from steprag.engines.threads import spin_briefly, usable_cores
from steprag.errors import ConfigError
from steprag.experiments.contenders import LABELS, UNTRAINED, Proof, QuestionSet, Sizes, elsewhere, the_contenders
from steprag.experiments.lanes import Lanes
from steprag.experiments.report import write_report
from steprag.experiments.stages import RECIPES, Contender, StageBook
from steprag.files import read_json, write_json, write_records
from steprag.inputs import read_questions
from steprag.runs import read_manifest
from steprag.types import Question

SOUND = ("--filters.repeating", "true", "--filters.unread", "true")
"""What is not learnt from: a small model's right answer is often a guess at the end of a ramble."""
STEPS = (*SOUND, "--reward.alpha", "1", "--sft.paths", "surest", "--sft.per_tree", "3")
"""What makes pairs of steps, and which right episodes are learnt from. With a discount, pairs would teach to answer
early (docs/results-shipped-start.md). One episode a tree would be too few, and all would bring lucky answers."""
OUTCOME = (*SOUND, "--reward.name", "first_answer", "--reward.metric", "em", "--reward.alpha", "1",
           "--pairs.errors", "0", "--products", '["pairs"]')  # fmt: skip
"""What makes pairs by outcome alone: right episodes against wrong ones where they part, whatever other episodes say."""
SFT_PASSES = 2
"""How often supervised training sees an episode that search found."""
DEMO_PASSES = 4
"""How often a warm start from few worked episodes sees each; the shipped one saw its 300 once."""

FULL = Sizes(demos=20, train=100, second=60, third=0, test=260, sft_steps=60, dpo_steps=60, elsewhere=100)
QUICK = Sizes(demos=0, train=8, second=8, third=0, test=12, sft_steps=3, dpo_steps=4, elsewhere=4)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag reproduce", description="Does training on steps help? (Atlas)")
    parser.add_argument("--out", default="runs/reproduce", metavar="DIR", help="folder of the runs [runs/reproduce]")
    parser.add_argument("--report", metavar="FILE", help="where the report goes, its plots beside it [DIR/results.md]")
    parser.add_argument("--quick", action="store_true", help="sizes that show that it runs, and nothing else")
    for name, value in vars(FULL).items():
        text = f"{name.replace('_', ' ')} [{value}; quick {getattr(QUICK, name)}]"
        parser.add_argument(f"--{name}", type=int, metavar="N", help=text)
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
    proof = Proof(out, sizes, tuple(given.without), also, given.engine, lanes)
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
        if value < (least := 0 if name in ("demos", "third") else 1):
            raise ConfigError(f"--{name} is {least} or more")
    return replace(usual, **asked)


def one_kind(proof: Proof) -> None:
    """Raises ConfigError where what is in this folder was begun otherwise: on other questions, or by another engine."""
    sizes, file = proof.sizes, proof.out / "kind.json"
    kind = {"engine": proof.engine, "lanes": proof.lanes}
    kind |= {"demos": sizes.demos, "train": sizes.train, "second": sizes.second, "third": sizes.third}
    old = {} if (proof.out / "stages.json").exists() else kind
    begun = read_json(file) if file.exists() else old
    if begun.keys() != kind.keys():
        raise ConfigError(f"{proof.out} was begun by an older version; give another --out")
    if begun != kind:
        words = " ".join(f"--{name} {value}" for name, value in begun.items())
        raise ConfigError(f"{proof.out} was begun with {words}; give that again, or another --out")
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, kind)


def run_stages(proof: Proof, book: StageBook) -> None:
    """Index, warm start, rounds of search, every adapter, and every score; side by side what needs no other."""
    out, sizes, warm = proof.out, proof.sizes, proof.warm
    book.run(out / "index", "index build", corpus=atlas.path("corpus"))
    if sizes.demos:
        warm_start(book, out, sizes.demos)
    first, *later = the_questions(sizes)
    found = search(book, proof, "search1", first, adapter=warm)
    book.run(out / "pairs1", "pairs", *STEPS, "--trees", *found)
    book.run(out / "pairs-outcome", "pairs", *OUTCOME, "--trees", *found)
    steps = min(sizes.dpo_steps, *(one_pass(out / name, "dpo") for name in ("pairs1", "pairs-outcome")))

    def all_rounds() -> None:
        learn(proof, book, 1, steps)
        book.together(later_rounds, *(partial(score, proof, book, name) for name in ("sft1", "dpo1")))

    def later_rounds() -> None:
        trees = list(found)
        for number, questions in enumerate(later, 2):
            trees += next_round(proof, book, number, trees, questions)
        book.together(*(partial(score, proof, book, f"dpo{number}") for number in range(2, len(later) + 2)))

    def one_round(name: str, pairs: str) -> None:
        train(book, out, name, "dpo", pairs=pairs, adapter=warm, steps=steps)
        score(proof, book, name)

    book.together(
        all_rounds,
        lambda: one_round("dpo", "pairs1"),
        lambda: one_round("outcome", "pairs-outcome"),
        *(partial(score, proof, book, name) for name in UNTRAINED),
    )
    score_elsewhere(proof, book)


def next_round(proof: Proof, book: StageBook, number: int, earlier: list[str], questions: list[Question]) -> list[str]:
    """Searches `questions` with the last round's policy, and learns from all rounds' trees; returns the search's runs.

    From the warm start, as ReST-EM from its base (arXiv 2312.06585), on all that was found: learnt on top of the first
    round's policy, the second round's alone lost what the first had gained (docs/results-shipped-start.md).
    """
    out, sizes, pairs = proof.out, proof.sizes, f"pairs{number}"
    found = search(book, proof, f"search{number}", questions, adapter=str(out / f"dpo{number - 1}"))
    book.run(out / pairs, "pairs", *STEPS, "--trees", *earlier, *found)
    learn(proof, book, number, min(number * sizes.dpo_steps, one_pass(out / pairs, "dpo")))
    return found


def learn(proof: Proof, book: StageBook, number: int, dpo_steps: int) -> None:
    """The adapters of a round: SFT on top of the warm start, then DPO on top of that."""
    out, pairs = proof.out, f"pairs{number}"
    sft = sft_steps(out / pairs, proof.sizes, number)
    train(book, out, f"sft{number}", "sft", pairs=pairs, adapter=proof.warm, steps=sft)
    train(book, out, f"dpo{number}", "dpo", pairs=pairs, adapter=str(out / f"sft{number}"), steps=dpo_steps)


def warm_start(book: StageBook, out: Path, demos: int) -> None:
    """The adapter `warm`, from Atlas' first worked episodes."""
    book.run(
        out / "worked", "worked",
        episodes=atlas.path("warmstart"), limit=demos, corpus=atlas.path("corpus"), index=out / "index",
    )  # fmt: skip
    book.run(out / "warm", "train", *fast(), config=recipe("warmstart"), pairs=out / "worked", epochs=DEMO_PASSES)


def the_questions(sizes: Sizes) -> list[list[Question]]:
    """The train split's first questions, and those that follow, for each round. Raises ConfigError."""
    questions, rounds = read_questions(atlas.path("train")), [sizes.train, sizes.second, sizes.third]
    if sum(rounds) > len(questions):
        raise ConfigError(
            f"Atlas has {len(questions)} questions to train on; --train, --second and --third ask for {sum(rounds)}"
        )
    rest = iter(questions)
    return [list(islice(rest, size)) for size in rounds if size]


def search(book: StageBook, proof: Proof, name: str, questions: list[Question], *, adapter: str) -> list[str]:
    """The run folders of a search over `questions`, one a lane."""
    size = math.ceil(len(questions) / proof.lanes)
    starts = range(0, len(questions), size)
    folders = [proof.out / (f"{name}-{number}" if proof.lanes > 1 else name) for number in range(1, len(starts) + 1)]

    def grow(folder: Path, start: int) -> None:
        proof.out.mkdir(parents=True, exist_ok=True)
        write_records(folder.with_suffix(".jsonl"), questions[start : start + size])
        book.run_once(
            folder, "generate", *proof.served, "--policy.adapter", adapter,
            config=RECIPES / "generation/atlas.yaml", questions=folder.with_suffix(".jsonl"), index=proof.out / "index",
        )  # fmt: skip

    book.together(*(partial(grow, folder, start) for folder, start in zip(folders, starts, strict=True)))
    return [str(folder) for folder in folders]


def train(book: StageBook, out: Path, name: str, stage: str, *, pairs: str, adapter: str, steps: int) -> None:
    book.run(out / name, "train", *fast(), config=recipe(stage), pairs=out / pairs, adapter=adapter, max_steps=steps)


def fast() -> tuple[str, ...]:
    return ("--bf16", "true") if fast_dtype() == "bfloat16" else ()


def recipe(stage: str) -> Path:
    return RECIPES / f"training/atlas-{stage}.yaml"


def one_pass(pairs: Path, stage: str) -> int:
    """Steps of the stage's recipe that see every row of the folder `pairs` once. Raises ConfigError without rows."""
    product = {"sft": "sft", "dpo": "pairs"}[stage]
    count = read_manifest(pairs)["counts"].get(f"{product}.train", 0)
    if not count:
        raise ConfigError(f"{pairs} holds nothing to train on by {stage}; search more questions (--train)")
    return max(1, count // yaml.safe_load(recipe(stage).read_text(encoding="utf-8"))["batch_size"])


def sft_steps(pairs: Path, sizes: Sizes, rounds: int) -> int:
    return min(rounds * sizes.sft_steps, SFT_PASSES * one_pass(pairs, "sft"))


def score(proof: Proof, book: StageBook, name: str) -> None:
    """The contender's answers to the test questions, where it is to be scored."""
    for contender in the_contenders(proof, {name} & set(proof.scored)):
        answers(proof, book, contender, "--dataset_name", "atlas", index=proof.out / "index", limit=proof.sizes.test)


def score_elsewhere(proof: Proof, book: StageBook) -> None:
    for questions in proof.also:
        index = proof.out / f"index-{questions.name}"
        book.run(index, "index build", corpus=questions.corpus)
        asked = "--questions", str(questions.questions)
        book.together(
            *(
                partial(answers, proof, book, contender, *asked, index=index, limit=proof.sizes.elsewhere)
                for contender in elsewhere(proof, questions)
            )
        )


def answers(proof: Proof, book: StageBook, contender: Contender, *questions: str, index: Path, limit: int) -> None:
    book.run(
        contender.run, "infer", *proof.served, *contender.options, *questions,
        config=RECIPES / "inference/demo.yaml", index=index, limit=limit,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
