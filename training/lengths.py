"""`steprag score lengths`: how long questions, pairs and training rows are, in characters or tokens, with a picture."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from steprag.config.load import parse_arguments
from steprag.console.plots import can_draw, new_figure, save_png
from steprag.console.progress import say, say_next
from steprag.engines.models import resolve_model
from steprag.engines.templates import NotEncoded
from steprag.errors import ConfigError
from steprag.policy.gate import chars_of
from steprag.records.inputs import read_questions
from steprag.records.jsonl import existing, read_rows, write_json
from training.rows import FILES, Row, data_files, read_file, tokenised

Lengths = dict[str, list[int]]
"""Part → its length in each row."""
MARKS = (("chosen", "dpo"), ("value", "critic"), ("completion", "sft"))
"""The first of these keys that a row has beside `prompt` names its stage; a row without any is a question."""


def main(argv: list[str]) -> int:
    """Prints a table of lengths; with --out also writes lengths.json and lengths.png."""
    parser = argparse.ArgumentParser(prog="steprag score lengths", description="Lengths of questions, pairs and rows.")
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="question files, pairs folders, files of training rows"
    )
    parser.add_argument("--tokenizer", metavar="MODEL", help="count its tokens, chat template and all [characters]")
    parser.add_argument("--max_length", type=int, metavar="N", help="also count the rows that are longer in all")
    parser.add_argument("--out", metavar="DIR", help="folder for lengths.json and lengths.png")
    given = parse_arguments(parser, argv)
    tokenizer: Any = None
    if given.tokenizer:
        from steprag.engines.weights import load_tokenizer

        tokenizer = load_tokenizer(resolve_model(given.tokenizer))
    found = {str(file): measured(file, tokenizer) for file in dict.fromkeys(_files(map(Path, given.paths)))}
    unit = f"tokens of {given.tokenizer}" if given.tokenizer else "characters"
    told = {name: figures(parts, given.max_length) for name, parts in found.items()}
    sys.stdout.write(f"{unit}\n" + "".join(map(_lines, told, told.values())))
    if given.out:
        write_json(Path(given.out, "lengths.json"), {"unit": unit, "files": told})
        if can_draw():
            draw(found, unit, given.max_length, Path(given.out, "lengths.png"))
    first = Path(next(iter(found)))
    say_next(*(("plan", first) if "question" in found[str(first)] else ("train", first.parent)))
    return 0


def _files(paths: Any) -> list[Path]:
    """The files themselves, and of a pairs folder those that training reads. Raises ConfigError."""
    found: list[Path] = []
    for path in paths:
        inside = [file for stage in FILES for file in data_files(path, stage) if file.is_file()]
        if not inside and existing(path, "file or pairs folder").is_dir():
            names = ", ".join(f"{stem}.train.jsonl" for stem, *_ in FILES.values())
            raise ConfigError(f"{path} is a folder without {names}; give a pairs folder or a file")
        found += inside or [path]
    return found


def measured(file: Path, tokenizer: Any) -> Lengths:
    """Of questions: question and longest golden answer. Of training rows: prompt, each completion, and the longest
    sequence as `all`; rows that the chat template refuses are said and left out. Raises ConfigError and DataError.
    """
    first = next((row for _, row in read_rows(file)), None) if ".jsonl" in file.suffixes else None
    stage = next((stage for key, stage in MARKS if isinstance(first, dict) and {"prompt", key} <= first.keys()), None)
    if stage is None:
        asked = read_questions(file)
        size: Any = len if tokenizer is None else lambda text: len(tokenizer.encode(text, add_special_tokens=False))
        answers = [max(map(size, one.golden_answers)) for one in asked]
        return {"question": [size(one.question) for one in asked], "golden answer": answers}
    rows = [found for row in read_file(file, stage) if (found := _row(row, tokenizer))]
    names = ("prompt", *FILES[stage][2])
    parts = {name: [row[at] for row in rows] for at, name in enumerate(names)}
    return {**parts, "all": [row[0] + max(row[1:]) for row in rows]}


def _row(row: Row, tokenizer: Any) -> tuple[int, ...] | None:
    """Length of the prompt and of each completion; None for a row that cannot be encoded."""
    if tokenizer is None:
        return chars_of(row.prompt), *(len(reply["content"]) for reply in row.completions)
    try:
        made = tokenised(row, tokenizer)
    except NotEncoded as error:
        say(f"lengths: a row is left out: {error}")
        return None
    return len(made.prompt), *map(len, made.completions)


def figures(parts: Lengths, most: int | None) -> dict[str, dict[str, Any]]:
    """Of every part: rows, mean, median, 95th percentile, the longest; of `all` (or a question) those above `most`."""
    told: dict[str, dict[str, Any]] = {}
    for name, values in parts.items():
        middle, high = np.percentile(values or [0], [50, 95])
        told[name] = {"n": len(values), "mean": round(float(np.mean(values or [0])), 1), "median": float(middle),
                      "p95": float(high), "max": max(values, default=0)}  # fmt: skip
        if most is not None and name in ("all", "question"):
            told[name]["longer"] = sum(value > most for value in values)
    return told


def _lines(file: str, parts: dict[str, dict[str, Any]]) -> str:
    rows = (", ".join(f"{key} {value:,.9g}" for key, value in one.items()) for one in parts.values())
    return f"{file}\n" + "".join(f"  {name:<14}{row}\n" for name, row in zip(parts, rows, strict=True))


def draw(found: dict[str, Lengths], unit: str, most: int | None, out: Path) -> None:
    """A histogram of each file, its parts one over the other."""
    figure = new_figure(7, 2.4 * len(found))
    for axes, (file, parts) in zip(figure.subplots(len(found), 1, squeeze=False)[:, 0], found.items(), strict=True):
        edges = np.linspace(0, max(max(values, default=0) for values in parts.values()) + 1, 41)
        for name, values in parts.items():
            axes.hist(values, edges, histtype="step", label=name)
        if most is not None:
            axes.axvline(most, color="black", linestyle="--", linewidth=1, label=f"max_length {most:,}")
        axes.set(title=Path(file).name, ylabel="rows", xlabel=unit)
        axes.legend(fontsize=8, frameon=False)
    save_png(figure, out, dpi=120)
