"""`steprag demo`: the whole pipeline on the embedded default, stage by stage, through the commands that a user types.

Every stage keeps its own run folder below `--out`, so a second demo reuses what is finished and an interrupted one
goes on.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from steprag import atlas
from steprag.cli import guarded
from steprag.config import parse_arguments
from steprag.engines.threads import spin_briefly
from steprag.experiments.stages import RECIPES, Contender, StageBook, compare, run_stage, stage
from steprag.files import read_json, read_records, write_json
from steprag.progress import say
from steprag.runs import read_manifest
from steprag.stats import shown
from steprag.training_rows import Pair


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag demo", description="The whole pipeline on the embedded default.")
    parser.add_argument("--out", default="runs/demo", metavar="DIR", help="folder of the demo's runs [runs/demo]")
    parser.add_argument("--train_questions", type=int, default=6, help="questions to search [6]")
    parser.add_argument("--test_questions", type=int, default=12, help="unseen questions to score on [12]")
    parser.add_argument("--sft_steps", type=int, default=4, help="steps of supervised training [4]")
    parser.add_argument("--dpo_steps", type=int, default=5, help="steps of DPO [5]")
    given = parse_arguments(parser, argv)
    spin_briefly()  # before a stage loads torch
    out, started = Path(given.out), time.monotonic()
    index, pairs, sft, dpo = out / "index", out / "pairs", out / "sft", out / "dpo"
    run_stage("index build", corpus=atlas.path("corpus"), out=index)
    searched = stage(
        out / "generate", "generate", once=True, config=RECIPES / "generation/demo.yaml",
        questions=atlas.path("train"), index=index, limit=given.train_questions,
    )  # fmt: skip
    StageBook(out / "stages.json").run(searched)
    run_stage("pairs", trees=out / "generate", out=pairs)
    recipe = RECIPES / "training"
    run_stage(
        "train", config=recipe / "atlas-sft.yaml", pairs=pairs, out=sft, max_steps=given.sft_steps,
        adapter="atlas-warmstart",
    )  # fmt: skip
    run_stage("train", config=recipe / "atlas-dpo.yaml", pairs=pairs, out=dpo, max_steps=given.dpo_steps, adapter=sft)
    contenders = [
        Contender("bare model, 2 worked examples", out / "infer-bare", ("--prompt.examples", "2")),
        Contender("warm start", out / "infer-warm", ("--adapter", "atlas-warmstart")),
        Contender("trained: SFT, then DPO", out / "infer-trained", ("--adapter", str(dpo))),
    ]
    for contender in contenders:
        say(f"demo: {contender.label}")
        run_stage(
            "infer",
            *contender.options,
            config=RECIPES / "inference/demo.yaml",
            dataset_name="atlas",
            index=index,
            limit=given.test_questions,
            out=contender.run,
        )
    report = _report(out, contenders)
    write_json(out / "report.json", report)
    sys.stdout.write(_table(report, out, time.monotonic() - started))
    return 0


def _report(out: Path, contenders: list[Contender]) -> dict[str, Any]:
    """Everything that the table shows, from the run folders."""
    index, generated, pairs = (read_manifest(out / name) for name in ("index", "generate", "pairs"))
    compared = compare(contenders, out / "compare")
    _, warm, trained = (contender.label for contender in contenders)
    scores = {c.label: read_json(c.run / "metrics.json") for c in contenders}
    actions: dict[str, int] = {}
    for pair in read_records(out / "pairs" / "pairs.train.jsonl", Pair):
        key = pair.action if pair.action == pair.rejected_action else f"{pair.action} over {pair.rejected_action}"
        actions[key] = actions.get(key, 0) + 1
    return {
        "passages": index["corpus"]["rows"],
        "trees": generated["counts"],
        "usage": generated["usage"],
        "pairs": pairs["counts"],
        "pairs_by_action": actions,
        "training": {name: _losses(out / name) for name in ("sft", "dpo")},
        "scores": scores,
        "gain": compared["differences"][trained][warm],
    }


def _losses(checkpoint: Path) -> dict[str, float]:
    manifest = read_manifest(checkpoint)
    return {key: manifest[key] for key in ("steps", "loss_first", "loss_last")}


def _table(report: dict[str, Any], out: Path, seconds: float) -> str:
    trees, usage, training, gain = report["trees"], report["usage"], report["training"], report["gain"]
    actions = ", ".join(f"{name} {count}" for name, count in sorted(report["pairs_by_action"].items()))
    losses = ", ".join(
        f"{name.upper()} {part['loss_first']:.3f} to {part['loss_last']:.3f} in {part['steps']} steps"
        for name, part in training.items()
    )
    lines = [
        "",
        f"index      {report['passages']:,} passages                                  {out / 'index'}",
        f"trees      {trees['trees']} ({trees['solved']} solved, {trees['mixed']} mixed, {trees['nodes']} nodes)"
        f"   {out / 'generate'}",
        f"calls      {usage['calls']}, {usage['prompt_tokens']:,} prompt tokens ({usage['cached_tokens']:,} cached), "
        f"{usage['completion_tokens']:,} generated",
        f"pairs      {actions or 'none'}   {out / 'pairs'}",
        f"loss       {losses}   {out / 'dpo'}",
        "",
        f"{'':<32}{'EM':>6}   {'95 % interval':<16}{'F1':>6}   {'95 % interval':<16}questions",
    ]
    for label, score in report["scores"].items():
        em, f1 = (_interval(score[f"{name}_interval"]) for name in ("em", "f1"))
        lines.append(
            f"{label:<32}{100 * score['em']:>6.1f}   {em:<16}{100 * score['f1']:>6.1f}   {f1:<16}{score['questions']}"
        )
    lines += ["", _verdict(gain), f"{seconds:.0f} s in all; everything above: {out / 'report.json'}", ""]
    return "\n".join(lines)


def _interval(pair: list[float]) -> str:
    return f"{100 * pair[0]:.1f} to {100 * pair[1]:.1f}"


def _verdict(gain: dict[str, Any]) -> str:
    """What so few questions bear: that training helped, that it hurt, or neither."""
    if gain["low"] == gain["high"] == 0:
        return f"Warm start and trained model scored alike on all {gain['questions']} questions: nothing is shown."
    word = {1: "Training helped", -1: "Training hurt", 0: "So small a run does not show whether training helped"}[
        shown(gain["low"], gain["high"], gain["p"])
    ]
    return (
        f"{word}: EM {100 * gain['em']:+.1f} points over the warm start on the same {gain['questions']} questions, "
        f"95 % interval {100 * gain['low']:+.1f} to {100 * gain['high']:+.1f}, exact p {gain['p']:.2g}."
    )


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
