"""`steprag reproduce`: does training on steps help? One warm start, eight contenders, one test split, one report.

The stages are commands that anyone can type (the report lists them), each with its own run folder, so an interrupted
run goes on. Search and training see questions of Atlas's train split alone, and of those the golden answers alone.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steprag import atlas
from steprag.cli import guarded
from steprag.config import parse_arguments
from steprag.errors import ConfigError
from steprag.files import read_questions, write_records, written_whole
from steprag.pipeline import RECIPES, Contender, StageBook, compare
from steprag.runs import code_version, read_manifest
from steprag.threads import spin_briefly, usable_cores

WARM = "atlas-warmstart"
VOTES = 4
"""Episodes a question in best-of-N."""
OUTCOME = ("--reward.name", "first_answer", "--reward.metric", "em", "--reward.alpha", "1", "--pairs.errors", "0",
           "--products", '["pairs"]')  # fmt: skip
"""What makes pairs of whole episodes: right against wrong where they part, whatever other episodes say."""
EPISODES = ("--sft.paths", "surest", "--sft.per_tree", "3")
"""Which right episodes are learnt from: one a tree would be too few to learn from, all would bring lucky answers."""


@dataclass(frozen=True)
class Sizes:
    """`train`: questions of each search; `test`: questions of each score; steps at most of each training run."""

    train: int
    test: int
    sft_steps: int
    dpo_steps: int


FULL = Sizes(train=100, test=260, sft_steps=30, dpo_steps=60)
QUICK = Sizes(train=8, test=12, sft_steps=3, dpo_steps=4)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag reproduce", description="Does training on steps help? (Atlas)")
    parser.add_argument("--out", default="runs/reproduce", metavar="DIR", help="folder of the runs [runs/reproduce]")
    parser.add_argument("--report", metavar="FILE", help="where the report goes, its plots beside it [DIR/results.md]")
    parser.add_argument("--quick", action="store_true", help="sizes that show that it runs, and nothing else")
    for name, value in vars(FULL).items():
        text = f"{name.replace('_', ' ')} [{value}; quick {getattr(QUICK, name)}]"
        parser.add_argument(f"--{name}", type=int, metavar="N", help=text)
    given = parse_arguments(parser, argv)
    usual = QUICK if given.quick else FULL
    sizes = Sizes(**{name: getattr(given, name) or value for name, value in vars(usual).items()})
    spin_briefly()  # before a stage loads torch
    out = Path(given.out)
    book = StageBook(out / "stages.json")
    make_policies(out, sizes, book)
    contenders = the_contenders(out)
    score_all(out, contenders, sizes, book)
    report = Path(given.report) if given.report else out / "results.md"
    compared = compare(contenders, report.parent / report.stem)
    with written_whole(report) as stream:
        stream.write(written(out, report, sizes, compared, book))
    sys.stdout.write(f"{report}\n")
    return 0


def make_policies(out: Path, sizes: Sizes, book: StageBook) -> None:
    """Index, two rounds of search, and every adapter that is scored."""
    book.run(out / "index", "index build", corpus=atlas.path("corpus"))
    first, second = question_files(out, sizes.train)
    search(book, out, "search1", first, adapter=WARM)
    book.run(out / "pairs1", "pairs", *EPISODES, trees=out / "search1")
    book.run(out / "pairs-outcome", "pairs", *OUTCOME, trees=out / "search1")
    steps = min(sizes.dpo_steps, *(dpo_steps(out / name) for name in ("pairs1", "pairs-outcome")))
    train(book, out, "sft1", "sft", pairs="pairs1", adapter=WARM, steps=sizes.sft_steps)
    train(book, out, "dpo", "dpo", pairs="pairs1", adapter=WARM, steps=steps)
    train(book, out, "outcome", "dpo", pairs="pairs-outcome", adapter=WARM, steps=steps)
    train(book, out, "dpo1", "dpo", pairs="pairs1", adapter=str(out / "sft1"), steps=steps)
    search(book, out, "search2", second, adapter=str(out / "dpo1"))
    book.run(out / "pairs2", "pairs", *EPISODES, trees=out / "search2")
    steps = min(sizes.dpo_steps, dpo_steps(out / "pairs2"))
    train(book, out, "sft2", "sft", pairs="pairs2", adapter=str(out / "dpo1"), steps=sizes.sft_steps)
    train(book, out, "dpo2", "dpo", pairs="pairs2", adapter=str(out / "sft2"), steps=steps)


def question_files(out: Path, count: int) -> tuple[Path, Path]:
    """The train split's first `count` questions, and the `count` that follow. Raises ConfigError."""
    questions = read_questions(atlas.path("train"))
    if 2 * count > len(questions):
        raise ConfigError(f"Atlas has {len(questions)} questions to train on; --train {count} asks for {2 * count}")
    files = out / "questions1.jsonl", out / "questions2.jsonl"
    out.mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(files):
        write_records(file, questions[number * count : (number + 1) * count])
    return files


def search(book: StageBook, out: Path, name: str, questions: Path, *, adapter: str) -> None:
    book.run(
        out / name, "generate", "--policy.adapter", adapter,
        config=RECIPES / "generation/atlas.yaml", questions=questions, index=out / "index",
    )  # fmt: skip


def train(book: StageBook, out: Path, name: str, stage: str, *, pairs: str, adapter: str, steps: int) -> None:
    recipe = RECIPES / f"training/atlas-{stage}.yaml"
    book.run(out / name, "train", config=recipe, pairs=out / pairs, adapter=adapter, max_steps=steps)


def dpo_steps(pairs: Path) -> int:
    """Steps of four pairs that see each pair of the folder once. Raises ConfigError where there are none."""
    count = read_manifest(pairs)["counts"].get("pairs.train", 0)
    if not count:
        raise ConfigError(f"{pairs} holds no pair to train on; search more questions (--train)")
    return max(1, count // 4)


LABELS = {
    "warm": "warm start",
    "bare": "bare model, 2 worked examples",
    "vote": f"warm start, best of {VOTES} by vote",
    "sft1": "SFT on the best episodes found",
    "dpo": "DPO on steps",
    "outcome": "DPO on outcomes alone",
    "dpo1": "SFT, then DPO on steps",
    "dpo2": "second round on top of that",
}
"""Contenders by the folder of what was trained; the first is what the table's differences are from."""


def the_contenders(out: Path) -> list[Contender]:
    warm = ("--adapter", WARM)
    options: dict[str, tuple[str, ...]] = {
        "warm": warm,
        "bare": ("--prompt.examples", "2"),
        "vote": (*warm, "--best_of", str(VOTES), "--policy.temperature", "0.7"),
    }
    return [
        Contender(label, out / f"infer-{name}", options.get(name, ("--adapter", str(out / name))))
        for name, label in LABELS.items()
    ]


def score_all(out: Path, contenders: list[Contender], sizes: Sizes, book: StageBook) -> None:
    for contender in contenders:
        book.run(
            contender.run, "infer", *contender.options,
            config=RECIPES / "inference/demo.yaml", dataset_name="atlas", index=out / "index", limit=sizes.test,
        )  # fmt: skip


CLAIMS = (
    ("dpo1", "warm", "SFT, then DPO on steps, over the warm start"),
    ("dpo2", "warm", "both rounds over the warm start"),
    ("dpo2", "dpo1", "the second round over the first"),
    ("dpo", "outcome", "pairs of steps over pairs of outcomes, as many of both"),
    ("dpo1", "sft1", "DPO on top of SFT over SFT alone"),
    ("dpo2", "vote", f"both rounds over the warm start's best of {VOTES}"),
)
"""What the report compares: contender, against which (`LABELS`), in words."""


def verdict(run: str, other: str, words: str, compared: dict[str, Any]) -> str:
    """One comparison in a sentence that says no more than its interval does; `compared` as in compare.json."""
    gain = compared["differences"][run][other]
    better, worse = (compared["runs"][name] for name in (run, other))
    what = "a gain" if gain["low"] > 0 else "a loss" if gain["high"] < 0 else "no difference shown"
    apart = "; the two 95 % intervals of EM are disjoint" if better["em_low"] > worse["em_high"] else ""
    span = f"{100 * gain['low']:+.1f} to {100 * gain['high']:+.1f}"
    return (
        f"- **{words}**: {100 * gain['em']:+.1f} points of EM, 95 % interval {span} (paired bootstrap), "
        f"exact McNemar p {gain['p']:.3g} ({gain['better']} questions better, {gain['worse']} worse of "
        f"{gain['questions']}): {what}{apart}."
    )


def written(out: Path, report: Path, sizes: Sizes, compared: dict[str, Any], book: StageBook) -> str:
    """The report as Markdown."""
    folder = report.parent / report.stem
    table = (folder / "compare.md").read_text(encoding="utf-8").replace("](", f"]({report.stem}/")
    lines = [
        "# Results: does training on steps help?",
        "",
        "Written by `bash scripts/reproduce.sh"
        + f" --train {sizes.train} --test {sizes.test} --sft_steps {sizes.sft_steps} --dpo_steps {sizes.dpo_steps}`"
        + f" (version {code_version()}, {usable_cores()} cores).",
        "",
        f"SmolLM2-135M-Instruct with LoRA on Atlas: {sizes.train} train questions a round of search (golden answers "
        f"alone), {sizes.test} questions of the test split for every line, greedy decoding unless a line says "
        "otherwise. A model of 135M parameters on a small world of its own: this shows what the method does, not "
        "what a 7B model would score.",
        "",
        table,
        "",
        "## What the figures bear",
        "",
        *(verdict(LABELS[run], LABELS[other], words, compared) for run, other, words in CLAIMS),
        "",
        "## What it cost",
        "",
        *costs(out, book),
        "",
        "## The commands",
        "",
        *(f"    {entry['command'].replace(str(RECIPES.parent) + os.sep, '')}" for entry in book.stages.values()),
        "",
    ]
    return "\n".join(lines)


def costs(out: Path, book: StageBook) -> list[str]:
    """A Markdown table, a line a stage."""
    lines = ["| stage | minutes | what | calls | prompt tokens (cached) | generated |", "|---|---|---|---|---|---|"]
    total = 0.0
    for name, entry in book.stages.items():
        if not (out / name / "manifest.json").exists():
            continue
        manifest = read_manifest(out / name)
        total += entry["seconds"]
        used = manifest.get("usage")
        spent = (
            f"{used['calls']:,} | {used['prompt_tokens']:,} ({used['cached_tokens']:,}) | {used['completion_tokens']:,}"
            if used
            else " | | "
        )
        lines.append(f"| {name} | {entry['seconds'] / 60:.1f} | {made(manifest)} | {spent} |")
    return [*lines, f"| all | {total / 60:.0f} | | | | |"]


def made(manifest: dict[str, Any]) -> str:
    """What a stage made, in a few words."""
    counts = manifest.get("counts") or {}
    match manifest["stage"]:
        case "generate":
            return f"{counts['trees']} trees, {counts['solved']} solved, {counts['mixed']} with answers of both kinds"
        case "pairs":
            return f"{counts.get('pairs.train', 0)} pairs, {counts.get('sft.train', 0)} steps of episodes"
        case "train":
            return f"{manifest['steps']} steps, loss {manifest['loss_first']:.3f} to {manifest['loss_last']:.3f}"
        case "infer":
            return f"{counts['questions']} questions"
        case _:
            return ""


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
