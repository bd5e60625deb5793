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
from steprag.config.load import parse_arguments
from steprag.console.progress import say
from steprag.console.terminal import guarded
from steprag.engines.threads import spin_briefly
from steprag.experiments.contenders import WARM
from steprag.experiments.options import recipe
from steprag.experiments.report import bears, made
from steprag.experiments.stages import RECIPES, Contender, Pipeline, compare, stage
from steprag.records.jsonl import read_json, write_json
from steprag.runs.run import read_manifest


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
    index, trees, pairs, sft, dpo = (out / name for name in ("index", "generate", "pairs", "sft", "dpo"))
    contenders = [
        Contender("bare model, 2 worked examples", out / "infer-bare", ("--prompt.examples", "2")),
        Contender("warm start", out / "infer-warm", ("--adapter", WARM)),
        Contender("trained: SFT, then DPO", out / "infer-trained", ("--adapter", str(dpo))),
    ]
    pipeline = Pipeline(out)
    for each in (
        stage(index, "index build", corpus=atlas.path("corpus")),
        stage(trees, "generate", config=RECIPES / "generation/demo.yaml", questions=atlas.path("train"), index=index,
              limit=given.train_questions),
        stage(pairs, "pairs", config=RECIPES / "preference/spre.yaml", trees=trees),
        stage(sft, "train", config=recipe("sft"), pairs=pairs, max_steps=given.sft_steps, adapter=WARM),
        stage(dpo, "train", config=recipe("dpo"), pairs=pairs, max_steps=given.dpo_steps, adapter=sft),
        *(
            stage(one.run, "infer", *one.options, config=RECIPES / "inference/demo.yaml", dataset_name="atlas",
                  index=index, limit=given.test_questions)
            for one in contenders
        ),
    ):  # fmt: skip
        say(f"demo: {each.out.name}")
        pipeline.run(each)
    compared = compare(contenders, out / "compare")
    report = report_of(out, contenders, compared)
    write_json(out / "report.json", report)
    sys.stdout.write(table(report, out, time.monotonic() - started))
    return 0


def report_of(out: Path, contenders: list[Contender], compared: dict[str, Any]) -> dict[str, Any]:
    """Everything that the table shows, from the run folders."""
    index, generated = (read_manifest(out / name) for name in ("index", "generate"))
    _, warm, trained = (contender.label for contender in contenders)
    return {
        "passages": index["corpus"]["rows"],
        "trees": generated["counts"],
        "usage": generated["usage"],
        "stages": {name: made(read_manifest(out / name)) for name in ("generate", "pairs", "sft", "dpo")},
        "scores": {each.label: read_json(each.run / "metrics.json") for each in contenders},
        "gain": compared["differences"][trained][warm],
    }


def table(report: dict[str, Any], out: Path, seconds: float) -> str:
    """What each stage made, and everybody's scores."""
    usage, stages = report["usage"], {"index": f"{report['passages']:,} passages", **report["stages"]}
    lines = ["", *(f"{name:<11}{what}   {out / name}" for name, what in stages.items())]
    lines += [
        f"calls      {usage['calls']}, {usage['prompt_tokens']:,} prompt tokens ({usage['cached_tokens']:,} cached), "
        f"{usage['completion_tokens']:,} generated",
        "",
        f"{'':<32}{'EM':>6}   {'95 % interval':<16}{'F1':>6}   {'95 % interval':<16}questions",
    ]
    for label, score in report["scores"].items():
        em, f1 = ("{:.1f} to {:.1f}".format(*(100 * end for end in score[f"{key}_interval"])) for key in ("em", "f1"))
        lines.append(
            f"{label:<32}{100 * score['em']:>6.1f}   {em:<16}{100 * score['f1']:>6.1f}   {f1:<16}{score['questions']}"
        )
    lines += ["", verdict(report["gain"]), f"{seconds:.0f} s in all; everything above: {out / 'report.json'}", ""]
    return "\n".join(lines)


def verdict(gain: dict[str, Any]) -> str:
    """The conclusion that so few questions allow: training helped, hurt, or neither."""
    if gain["low"] == gain["high"] == 0:
        return f"Warm start and trained model scored alike on all {gain['questions']} questions: nothing is shown."
    return f"The trained model over the warm start: {bears(gain)}."


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
