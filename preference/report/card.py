"""The data card: README.md of a pairs folder in the form of the Hugging Face hub, from report.json and leakage.json.

Its words are in `card.md.j2`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
import yaml

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


def card(report: dict[str, Any], plots: list[str], leakage: dict[str, Any] | None) -> str:
    """The card's text; the same report gives the same bytes.

    Raises ValueError, or what Python raises, where the report has not the shape that we write.
    """
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
        "language": ["en"],
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
