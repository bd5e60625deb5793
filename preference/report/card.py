"""`report.json` of a pairs folder, and what is made of it: the data card, the plots, and a few lines for the person.

The card is README.md in the form of the Hugging Face hub, from report.json and leakage.json; its words are in
`card.md.j2`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from preference.report.plots import draw
from steprag.console.plots import can_draw, png
from steprag.errors import ConfigError, counted, quoted
from steprag.records.jsonl import existing, read_json, shaped, write_json, written_whole

FORMAT = 1
REMEDY = "make the folder again"
SECTIONS = ("policy", "judge", "episode", "search", "reward", "retriever", "prompt")
"""Of a run's identity, those that are shown."""
TEMPLATE = Path(__file__).with_name("card.md.j2")
LICENCES = {
    "hotpotqa": "CC BY-SA 4.0",
    "2wikimultihopqa": "Apache-2.0",
    "musique": "CC BY 4.0",
    "popqa": "MIT",
    "atlas": "see steprag/atlas/SOURCES.md",
    "wikipedia text": "CC BY-SA",
}
"""Licences of well-known sources, as their publishers state them, by the name that questions give."""

SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


def generation_facts(manifest: dict[str, Any]) -> dict[str, Any]:
    """What a generation run's manifest says of the trees: models, search, seed, costs. Empty without a manifest.

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
    """Name and content of report.json, the plots and the card, which says what an earlier check in `folder` found."""
    report = {"format": FORMAT, **report}
    yield "report.json", json.dumps(report, ensure_ascii=False, indent=1)
    names = []
    for name, picture in draw(report) if report["config"]["card"]["plots"] and can_draw() else ():
        yield f"plot_{name}.png", png(picture, dpi=150)
        names.append(name)
    found = folder / "leakage.json"
    yield "README.md", card(report, names, read_json(found) if found.is_file() else None)


def note_leakage(folder: Path, found: dict[str, Any]) -> None:
    """Writes leakage.json, and the card again with it. Raises ConfigError where the folder has no report."""
    report = read_report(folder)
    write_json(folder / "leakage.json", found)
    plots = sorted(path.stem.removeprefix("plot_") for path in folder.glob("plot_*.png"))
    with shaped(folder / "report.json", remedy=REMEDY):
        text = card(report, plots, found)
    with written_whole(folder / "README.md") as stream:
        stream.write(text)


def read_report(folder: Path) -> dict[str, Any]:
    """The report of a finished pairs folder."""
    return read_json(existing(folder / "report.json", "report of the pairs folder"))


UNITS = {"pairs": "pair", "sft": "supervised step", "steps": "step label", "rankings": "ranking"}
"""How a person calls one of a product."""


def summary(command: str, folder: Path) -> str:
    """The lines that a person reads when the command is done."""
    report = read_report(folder)
    counts, pairs = report["counts"], report["pairs"]
    lines = [f"{command}: {counted(counts.get(f'{kind}.train', 0), UNITS[kind])} to train on, "
             f"{counts.get(f'{kind}.val', 0)} for validation" for kind in report["products"]]  # fmt: skip
    if label := report.get("label"):
        hard = pairs["unsolved"]
        lines.append(f"{command}: steps are labelled by {label['why']}")
        if label["unsolved"]:
            lines.append(f"{command}: {counted(hard['pairs'], 'pair')} come from trees that no answer solved "
                         f"({hard['trees']} of {label['unsolved']})")  # fmt: skip
    actions = ", ".join(f"{name} {count}" for name, count in pairs["actions"].items()) or "none"
    lines.append(f"{command}: pairs by action: {actions}")
    dropped = [f"{row['rule']} {row['before']} → {row['after']}" for row in report["rules"]
               if row["before"] != row["after"]]  # fmt: skip
    lines.append(f"{command}: candidates by rule: {', '.join(dropped) or 'none dropped'}")
    lines.append(f"{command}: report, card and plots in {folder}")
    return "\n".join(lines)


def card(report: dict[str, Any], plots: list[str], leakage: dict[str, Any] | None) -> str:
    """The card's text; the same report gives the same bytes.

    Raises ValueError, or what Python raises, where the report has not the shape that we write.
    """
    import jinja2

    world = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    world.filters |= {"named": _named, "figure": _figure, "share": _share, "cell": _cell, "only": _only, "flat": _flat}
    config, pairs = report["config"], report["pairs"]
    lengths, tokens = pairs["lengths"], pairs["tokens"]
    spread = [("margin", pairs["margins"]), ("chosen, characters", lengths["chosen"]),
              ("rejected, characters", lengths["rejected"])]  # fmt: skip
    if tokens:
        spread.append((f"prompt and longer step, tokens (cut-off {tokens['cutoff']})", tokens))
    told = {
        "report": report, "config": config, "counts": report["counts"], "source": report["source"], "pairs": pairs,
        "credit": report.get("credit"), "plots": plots, "leakage": leakage, "spread": spread,
        "label": config.get("label") or config.get("reward"),  # its name in earlier versions
        "front": yaml.safe_dump(_front(report), sort_keys=False, allow_unicode=True),
        "licences": _licences(report),
    }  # fmt: skip
    try:
        return world.from_string(TEMPLATE.read_text(encoding="utf-8")).render(told)
    except jinja2.TemplateRuntimeError as error:
        raise ValueError(str(error)) from None


def _front(report: dict[str, Any]) -> dict[str, Any]:
    config, counts = report["config"], report["counts"]
    kinds = [kind for kind in report["products"] if counts.get(f"{kind}.train") or counts.get(f"{kind}.val")]
    rows = sum(counts.get(f"{kind}.{split}", 0) for kind in kinds for split in ("train", "val"))
    files = [
        {
            "config_name": kind,
            "data_files": [
                {"split": hub, "path": f"{kind}.{split}.jsonl"}
                for split, hub in (("train", "train"), ("val", "validation"))
                if counts.get(f"{kind}.{split}")
            ],
        }
        for kind in kinds
    ]
    return {
        "pretty_name": config["card"]["name"],
        "license": config["card"]["license"],
        "task_categories": ["question-answering", "text-generation"],
        "tags": ["preference", "dpo", "process-supervision", "agentic-rag", "steprag"],
        "size_categories": [next((name for limit, name in SIZES if rows < limit), "n>1M")],
        "configs": files,
    }


def _licences(report: dict[str, Any]) -> str:
    names = " ".join(report["source"].get("question_sources", {})).lower()
    known = {name: licence for name, licence in LICENCES.items() if name in names}
    stated = known | report["config"]["card"]["sources"]
    return "; ".join(f"{name} {licence}" for name, licence in sorted(stated.items()))


def _named(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items() if value is not None)


def _only(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def _flat(trees: dict[str, Any]) -> dict[str, Any]:
    return {name: count for name, count in trees.items() if name != "without_contrast" and count}


def _cell(value: float | str) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"


def _share(row: dict[str, Any] | None) -> str:
    if not row or row["share"] is None:
        return "–"
    return f"{row['share']:.0%} ({row['low']:.0%} to {row['high']:.0%} of {row['count']:,})"
