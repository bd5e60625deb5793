"""`report.html` of an adaptation: one page on what was read, asked, paid and won, that needs nothing beside it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from indexes.rows.passage_store import PassageStore
from preference.config import LeakageConfig
from preference.report.leakage import check_folder
from steprag.experiments.adapt.gates import GATES
from steprag.experiments.report import bears, costs
from steprag.experiments.stages import Contender
from steprag.records.jsonl import read_json, read_records, written_whole
from steprag.runs.run import read_manifest
from steprag.scores.gold import em_of
from steprag.types import Prediction, Usage

if TYPE_CHECKING:
    from steprag.experiments.adapt.adapt import Adaptation

TEMPLATE = Path(__file__).with_name("report.html.j2")
EXAMPLES = 20
"""Test questions that the page shows with their sources."""


def write_report(adaptation: Adaptation, contenders: list[Contender], compared: dict[str, Any]) -> Path:
    """Writes the page; `compared` as in compare.json. Whatever documents and models said stands in it as text."""
    from steprag.experiments.adapt.adapt import bill

    out, gates = adaptation.out, read_json(adaptation.out / "questions/gates.json")
    last = contenders[-1]
    price = adaptation.config.policy.cost
    spent = {name: Usage(*(used[key] for key in vars(Usage()))) for name in ("questions", "trees")
             if (used := read_manifest(out / name).get("spent"))}  # fmt: skip
    passed = sum(gates["passed"].values())
    told = {
        "gates": gates, "words": GATES, "passed": passed, "trained": adaptation.trained,
        "skipped": _skipped(out / "index"), "runs": [(each.label, compared["runs"][each.label]) for each in contenders],
        "over": [(each.label, bears(compared["differences"][last.label][each.label])) for each in contenders[:-1]]
        if adaptation.trained else [],
        "bills": {name: bill(use, price) for name, use in spent.items()},
        "each": bill(_share(spent["questions"], passed), price) if passed and "questions" in spent else "",
        "costs": [[cell.strip() for cell in line.strip("|").split("|")] for line in costs(out, adaptation.pipeline)
                  if "---" not in line],
        "leaked": check_folder(out / "pairs", LeakageConfig(against=(str(out / "questions/test.jsonl"),), encoder=None))["matches"],
        "examples": _examples(out, last.run), "failed": adaptation.failed,
        "commands": [entry["command"] for entry in adaptation.pipeline.stages.values()],
    }  # fmt: skip
    page = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    with written_whole(out / "report.html") as stream:
        stream.write(page.from_string(TEMPLATE.read_text(encoding="utf-8")).render(told))
    return out / "report.html"


def _share(use: Usage, parts: int) -> Usage:
    return Usage(*(round(each / parts) for each in vars(use).values()))


def _skipped(index: Path) -> list[dict[str, Any]]:
    """The first documents that gave nothing, each with its reason."""
    from steprag.records.jsonl import read_rows

    file = index / "skipped.jsonl"
    return [row for _, row in islice(read_rows(file), EXAMPLES)] if file.is_file() else []


def _examples(out: Path, run: Path) -> list[dict[str, Any]]:
    """Test questions with what the last contender answered, what is right, and the passages that say it."""
    predictions = list(islice(read_records(run / "predictions.jsonl", Prediction), EXAMPLES))
    wanted = {key for one in predictions for key in one.metadata["supporting_ids"]}
    with PassageStore(out / "index") as store:
        texts = {one.id: one for one in map(store.read, range(len(store))) if one.id in wanted}
    return [{"question": one.question, "golden": one.golden_answers[0], "said": one.prediction or f"({one.finish})",
             "right": em_of(one.prediction, one) == 1, "sources": [texts[key] for key in one.metadata["supporting_ids"]]}
            for one in predictions]  # fmt: skip
