"""`report.json` of a pairs folder, and what is made of it: the data card, the plots, and a few lines for the person."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from preference.report.card import card
from preference.report.plots import draw
from steprag.console.plots import can_draw, png
from steprag.errors import ConfigError, quoted
from steprag.records.jsonl import existing, read_json, shaped, write_json, written_whole

FORMAT = 1
REMEDY = "make the folder again"
SECTIONS = ("policy", "judge", "episode", "search", "reward", "retriever", "prompt")
"""Of a run's identity, those that are shown."""


def generation_facts(manifest: dict[str, Any]) -> dict[str, Any]:
    """What a generation run's manifest tells of the trees: models, search, seed, costs. Empty without a manifest.

    Raises ConfigError where a section is none.
    """
    identity = manifest.get("identity", {})
    kept = (*SECTIONS, "index", "questions", "seed")
    facts = {key: identity[key] for key in kept if key in identity}
    facts |= {key: manifest[key] for key in ("spent", "calls_lost") if key in manifest}
    for key in (*SECTIONS, "spent"):
        if not isinstance(facts.get(key, {}), dict):
            raise ConfigError(f"a run's manifest says {quoted(facts[key])} of {key}, which is no object")
    return facts


def report_files(report: dict[str, Any], folder: Path) -> Iterator[tuple[str, str | bytes]]:
    """Name and content of report.json, the plots and the card, which tells what an earlier check in `folder` found."""
    report = {"format": FORMAT, **report}
    yield "report.json", json.dumps(report, ensure_ascii=False, indent=1)
    names = []
    for name, picture in draw(report) if report["config"]["card"]["plots"] and can_draw() else ():
        yield f"plot_{name}.png", png(picture, dpi=150)
        names.append(name)
    yield "README.md", card(report, names, _leakage(folder))


def note_leakage(folder: Path, found: dict[str, Any]) -> None:
    """Writes leakage.json and the card anew with it. Raises ConfigError where the folder has no report."""
    report = read_report(folder)
    write_json(folder / "leakage.json", found)
    plots = sorted(path.stem.removeprefix("plot_") for path in folder.glob("plot_*.png"))
    with shaped(folder / "report.json", remedy=REMEDY):
        text = card(report, plots, found)
    with written_whole(folder / "README.md") as stream:
        stream.write(text)


def read_report(folder: Path) -> dict[str, Any]:
    """The report of a finished pairs folder."""
    file = existing(folder / "report.json", "report of the pairs folder")
    return read_json(file)


def _leakage(folder: Path) -> dict[str, Any] | None:
    file = folder / "leakage.json"
    return read_json(file) if file.is_file() else None


def summary(command: str, folder: Path) -> str:
    """The lines that a person reads when the command is done."""
    report = read_report(folder)
    counts, pairs = report["counts"], report["pairs"]
    lines = [f"{command}: {counts.get(f'{kind}.train', 0)} + {counts.get(f'{kind}.val', 0)} {kind} (train + validation)"
             for kind in report["products"]]  # fmt: skip
    actions = ", ".join(f"{name} {count}" for name, count in pairs["actions"].items()) or "none"
    lines.append(f"{command}: pairs by action: {actions}")
    dropped = [f"{row['rule']} {row['before']} → {row['after']}" for row in report["rules"]
               if row["before"] != row["after"]]  # fmt: skip
    lines.append(f"{command}: candidates by rule: {', '.join(dropped) or 'none dropped'}")
    lines.append(f"{command}: report, card and plots in {folder}")
    return "\n".join(lines)
