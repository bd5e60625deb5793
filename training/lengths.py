"""`steprag score lengths`: how long questions, pairs and training rows are, in characters or tokens, with a picture."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from steprag.config.load import parse_arguments
from steprag.console.plots import can_draw, new_figure, save_png
from steprag.console.progress import say
from steprag.engines.models import resolve_model
from steprag.engines.templates import NotEncoded
from steprag.errors import ConfigError
from steprag.policy.gate import chars_of
from steprag.records.inputs import read_questions
from steprag.records.jsonl import existing, read_rows, write_json
from training.rows import FILES, Row, TokenRow, data_files, read_file, tokenised

Lengths = dict[str, list[int]]
"""Part → its length in each row."""
MARKS = (("dpo", "chosen"), ("critic", "value"), ("sft", "completion"))
"""Stage by the first of these keys that a training row has; a row without any is a question."""


def main(argv: list[str]) -> int:
    """Prints a table of lengths; with --out also lengths.json and lengths.png."""
    parser = argparse.ArgumentParser(prog="steprag score lengths", description="Lengths of questions, pairs and rows.")
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="question files, pairs folders, files of training rows"
    )
    parser.add_argument("--tokenizer", metavar="MODEL", help="count its tokens, chat template and all [characters]")
    parser.add_argument("--max_length", type=int, metavar="N", help="also tell how many rows are longer in all")
    parser.add_argument("--out", metavar="DIR", help="folder for lengths.json and lengths.png")
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    given = parse_arguments(parser, argv)
    found = lengths(list(map(Path, given.paths)), given.tokenizer)
    unit = f"tokens of {given.tokenizer}" if given.tokenizer else "characters"
    told = {"unit": unit, "files": {name: figures(parts, given.max_length) for name, parts in found.items()}}
    sys.stdout.write(json.dumps(told, indent=2) + "\n" if given.json else table(told))
    if given.out:
        Path(given.out).mkdir(parents=True, exist_ok=True)
        write_json(Path(given.out, "lengths.json"), told)
        if can_draw():
            draw(found, unit, given.max_length, Path(given.out, "lengths.png"))
    return 0


def lengths(paths: list[Path], model: str | None) -> dict[str, Lengths]:
    """By file what `measured` tells, of a pairs folder each file that training reads. Raises ConfigError and DataError
    for what is none of these.
    """
    tokenizer: Any = None
    if model:
        from steprag.engines.weights import load_tokenizer

        tokenizer = load_tokenizer(resolve_model(model))
    files: list[Path] = []
    for path in paths:
        inside = [file for stage in FILES for file in data_files(path, stage) if file.is_file()]
        if not inside and existing(path, "file or pairs folder").is_dir():
            names = ", ".join(f"{stem}.train.jsonl" for stem, *_ in FILES.values())
            raise ConfigError(f"{path} is a folder without {names}; give a pairs folder or a file")
        files += inside or [path]
    return {str(file): measured(file, tokenizer) for file in dict.fromkeys(files)}


def measured(file: Path, tokenizer: Any) -> Lengths:
    """Of questions: question and longest golden answer. Of training rows: prompt, each completion, and the longest
    sequence as `all`; rows that the tokenizer's chat template refuses are said and left out.
    """
    first = next((row for _, row in read_rows(file)), {}) if file.suffix in (".jsonl", ".gz") else {}
    stage = next(
        (stage for stage, mark in MARKS if isinstance(first, dict) and mark in first and "prompt" in first), ""
    )
    size: Callable[[str], int] = len
    if tokenizer:
        size = lambda text: len(tokenizer.encode(text, add_special_tokens=False))  # noqa: E731
    if not stage:
        asked = read_questions(file)
        return {"question": [size(one.question) for one in asked],
                "golden answer": [max(map(size, one.golden_answers)) for one in asked]}  # fmt: skip
    rows = [found for row in read_file(file, stage) if (found := _row(row, tokenizer))]
    names = FILES[stage][2]
    parts = {name: [one[1][at] for one in rows] for at, name in enumerate(names)}
    return {"prompt": [one[0] for one in rows], **parts, "all": [one[0] + max(one[1]) for one in rows]}


def _row(row: Row, tokenizer: Any) -> tuple[int, tuple[int, ...]] | None:
    """Length of the prompt and of each completion; None for a row that cannot be encoded."""
    if tokenizer is None:
        return chars_of(row.prompt), tuple(len(reply["content"]) for reply in row.completions)
    try:
        made: TokenRow = tokenised(row, tokenizer)
    except NotEncoded as error:
        say(f"lengths: a row is left out: {error}")
        return None
    return len(made.prompt), tuple(map(len, made.completions))


def figures(parts: Lengths, most: int | None) -> dict[str, dict[str, Any]]:
    """Of every part: rows, mean, median, 95th percentile, the longest; of `all` (or a question) those above `most`."""
    told: dict[str, dict[str, Any]] = {}
    for name, values in parts.items():
        if values:
            middle, high = np.percentile(values, [50, 95])
            told[name] = {"n": len(values), "mean": round(float(np.mean(values)), 1), "median": float(middle),
                          "p95": float(high), "max": max(values)}  # fmt: skip
            if most is not None and name in ("all", "question"):
                told[name]["longer"] = sum(value > most for value in values)
    return told


def table(told: dict[str, Any]) -> str:
    """The figures as lines of equal columns."""
    lines = [f"{told['unit']:<16}{'n':>9}{'mean':>9}{'median':>9}{'p95':>9}{'max':>9}"]
    for file, parts in told["files"].items():
        lines.append(file)
        for name, one in parts.items():
            longer = f"   {one['longer']} longer" if "longer" in one else ""
            numbers = f"{one['n']:>9,}{one['mean']:>9,.1f}{one['median']:>9,.0f}{one['p95']:>9,.0f}{one['max']:>9,}"
            lines.append(f"  {name:<14}{numbers}{longer}")
    return "\n".join(lines) + "\n"


def draw(found: dict[str, Lengths], unit: str, most: int | None, out: Path) -> None:
    """A histogram of each file, its parts one over the other."""
    figure = new_figure(7, 2.4 * len(found))
    for axes, (file, parts) in zip(figure.subplots(len(found), 1, squeeze=False)[:, 0], found.items(), strict=True):
        there = {name: values for name, values in parts.items() if values}
        edges = np.linspace(0, max((max(values) for values in there.values()), default=1) + 1, 41)
        for name, values in there.items():
            axes.hist(values, edges, histtype="step", label=name)
        if most is not None:
            axes.axvline(most, color="black", linestyle="--", linewidth=1, label=f"max_length {most:,}")
        axes.set(title=Path(file).name, ylabel="rows", xlabel=unit)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, frameon=False)
    save_png(figure, out, dpi=120)
