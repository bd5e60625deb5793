"""The report of `steprag reproduce`: tables, conclusions, costs and commands, as Markdown with plots beside it."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apps.reproduce.contenders import LABELS, VOTES, Proof, elsewhere, the_contenders
from apps.reproduce.stages import Contender, Pipeline, compare
from steprag import atlas
from steprag.config.recipes import RECIPES
from steprag.engines.threads import usable_cores
from steprag.errors import counted
from steprag.records.jsonl import written_whole
from steprag.runs.run import code_version, read_manifest
from steprag.scores.stats import shown

CLAIMS = (
    ("dpo1", "warm", "one round over the warm start"),
    ("dpo2", "warm", "both rounds over the warm start"),
    ("dpo2", "dpo1", "the second round over the first"),
    ("dpo3", "warm", "three rounds over the warm start"),
    ("dpo3", "dpo2", "the third round over the second"),
    ("gain", "outcome", "steps by gain over outcomes, as many of both"),
    ("gain", "rollouts", "steps by gain over steps by rollouts, as many of both"),
    ("gain", "cover", "steps by gain over steps by string match, as many of both"),
    ("cover", "outcome", "steps by string match over outcomes, as many of both"),
    ("rollouts", "outcome", "steps by rollouts over outcomes, as many of both"),
    ("grpo", "dpo2", "GRPO with turn rewards over both rounds"),
    ("dpo1", "sft1", "DPO on top of SFT over SFT alone"),
    ("dpo2", "shipped", "both rounds over a warm start from every worked episode"),
    ("dpo2", "vote", f"both rounds over the warm start's best of {VOTES}"),
)
"""What the report compares: contender, against which (`LABELS`), in words."""


def verdict(run: str, other: str, words: str, compared: dict[str, Any]) -> str:
    """One comparison in a sentence that says no more than interval and exact test do; `compared` as in compare.json.

    Where questions of both sorts were asked, open ones (whose answer cannot be guessed) follow alone.
    """
    better, worse = (compared["runs"][name] for name in (run, other))
    apart = "; the two 95 % intervals of EM are disjoint" if better["em_low"] > worse["em_high"] else ""
    said = f"- **{words}**: {bears(compared['differences'][run][other])}{apart}."
    if part := compared.get("groups", {}).get("open"):
        said += f" Open questions alone: {bears(part[run]['differences'][other])}."
    return said


def bears(gain: dict[str, Any]) -> str:
    """A difference of compare.json in words: points, interval, exact test, and what both together show."""
    what = {1: "a gain", -1: "a loss", 0: "no difference shown"}[shown(gain["low"], gain["high"], gain["p"])]
    span = f"{100 * gain['low']:+.1f} to {100 * gain['high']:+.1f}"
    return (
        f"{100 * gain['em']:+.1f} points of EM, 95 % interval {span} (paired bootstrap), exact McNemar p "
        f"{gain['p']:.3g} ({gain['better']} questions better, {gain['worse']} worse of {gain['questions']}): {what}"
    )


def write_report(proof: Proof, report: Path, pipeline: Pipeline) -> None:
    """Compares the runs and writes `report`, its tables and plots in a folder of its name beside it."""
    folder = report.parent / report.stem
    table, compared = compared_runs(the_contenders(proof), folder, report)
    lines = [
        *["# Results: does training on steps help?", "", introduction(proof), "", table, ""],
        *["## What the figures bear", ""],
        *(
            verdict(LABELS[run], LABELS[other], words, compared)
            for run, other, words in CLAIMS
            if {run, other} <= set(proof.scored)
        ),
        *(f"- {LABELS[name]}: not run." for name in proof.without),
        "",
    ]
    for questions in proof.also:
        contenders = elsewhere(proof, questions)
        table, compared = compared_runs(contenders, folder / questions.name, report)
        first, best = (contender.label for contender in contenders)
        lines += [
            *[f"## Another world: {questions.name}", ""],
            f"{proof.sizes.elsewhere} questions of {questions.questions.name} over {questions.corpus.name}, which "
            "neither the warm start nor the search has seen. A 135M model taught on Atlas alone: what carries over.",
            *["", table, "", verdict(best, first, f"{best} over {first}", compared), ""],
        ]
    if not proof.also:
        lines += ["Questions of other worlds were not asked (`--also`).", ""]
    write_with_costs(lines, proof.out, report, pipeline)


def write_with_costs(lines: list[str], out: Path, report: Path, pipeline: Pipeline) -> None:
    """Writes the report, with what each stage took and the commands at its end."""
    done = (entry["command"] for entry in pipeline.stages.values() if entry["done"])
    commands = (command.replace(str(RECIPES.parent) + os.sep, "") for command in done)
    ending = ["## What it cost", "", *costs(out, pipeline), "", "## The commands", ""]
    with written_whole(report) as stream:
        stream.write("\n".join([*lines, *ending, *(f"    {command}" for command in commands), ""]))


def introduction(proof: Proof) -> str:
    """The runs, their machine, and what they can show."""
    sizes = {name: count for name, count in vars(proof.sizes).items() if proof.also or name != "elsewhere"}
    demos = sizes["demos"] or atlas.path("warmstart").read_text(encoding="utf-8").count("\n")
    options = as_typed({**sizes, "engine": proof.engine, "lanes": proof.lanes})
    options += "".join(f" --also {shlex.join([str(also.questions), str(also.corpus)])}" for also in proof.also)
    options += f" --trees {shlex.quote(str(proof.trees))}" if proof.trees else ""
    options += f" --without {' '.join(proof.without)}" if proof.without else ""
    third = f", {sizes['third']} for the third" if sizes["third"] else ""
    return (
        f"Written by `bash scripts/reproduce.sh{options}` (version {code_version()}, {usable_cores()} cores)."
        f"\n\nSmolLM2-135M-Instruct with LoRA on Atlas: {demos} worked episodes for the warm start, "
        f"{sizes['train']} train questions for the first round of search, {sizes['second']} for the second{third} "
        f"(golden answers, and marked passages for questions that can be guessed), {sizes['test']} questions of the "
        "test split for every line, greedy decoding unless a line says otherwise. A model of 135M parameters on a "
        "small world: what the method does there, not what a 7B model would score."
    )


def as_typed(asked: Mapping[str, object]) -> str:
    """Options as somebody types them behind a command."""
    return "".join(f" --{name} {value}" for name, value in asked.items())


def compared_runs(contenders: list[Contender], folder: Path, report: Path) -> tuple[str, dict[str, Any]]:
    """Their table as Markdown whose pictures are found from `report`, and what compare.json holds."""
    compared = compare(contenders, folder)
    table = (folder / "compare.md").read_text(encoding="utf-8")
    return table.replace("](", f"]({folder.relative_to(report.parent).as_posix()}/"), compared


def costs(out: Path, pipeline: Pipeline) -> list[str]:
    """A Markdown table, a line a stage; without minutes where it was run by hand. The last line is the time by the
    clock, in which stages may have run side by side.
    """
    lines = ["| stage | minutes | what | calls | prompt tokens (cached) | generated |", "|---|---|---|---|---|---|"]
    times: list[list[float]] = []
    for name, entry in pipeline.stages.items():
        if not (entry["done"] and (out / name / "manifest.json").exists()):
            continue
        manifest = read_manifest(out / name)
        times += entry["times"] or []
        minutes = "" if entry["times"] is None else f"{sum(end - start for start, end in entry['times']) / 60:.1f}"
        used = manifest.get("spent") or manifest.get("usage")
        spent = (
            f"{used['calls']:,} | {used['prompt_tokens']:,} ({used['cached_tokens']:,}) | {used['completion_tokens']:,}"
            if used
            else " | | "
        )
        lines.append(f"| {name} | {minutes} | {made(manifest)} | {spent} |")
    return [*lines, f"| all, by the clock | {seconds(times) / 60:.0f} | | | | |"]


def made(manifest: dict[str, Any]) -> str:
    """What a stage made, in a few words."""
    counts = manifest.get("counts") or {}
    match manifest["stage"]:
        case "generate":
            trees = counted(counts["trees"], "tree")
            return f"{trees}, {counts['solved']} solved, {counts['mixed']} with answers of both kinds"
        case "pairs":
            pairs, steps = (counts.get(f"{kind}.train", 0) for kind in ("pairs", "sft"))
            return f"{counted(pairs, 'pair')}, {counted(steps, 'step')} of episodes"
        case "train":
            first, last = (manifest.get(f"loss_{end}", manifest.get(f"reward_{end}")) for end in ("first", "last"))
            told = "loss" if "loss_first" in manifest else "reward"
            return f"{counted(manifest['steps'], 'step')}, {told} {first:.3f} to {last:.3f}"
        case "infer":
            return counted(counts["questions"], "question")
        case _:
            return ""


def seconds(times: list[list[float]]) -> float:
    """How long at least one of `times`, pairs of start and end, was under way."""
    covered, until = 0.0, -math.inf
    for start, end in sorted(times):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered
