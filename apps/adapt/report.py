"""`report.html` of an adaptation: one page on what was read, asked, paid and won, that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from apps.adapt.gates import GATES
from apps.reproduce.report import costs, shown
from apps.reproduce.stages import Contender, Pipeline
from indexes.rows.passage_store import PassageStore
from preference.config import LeakageConfig
from steprag.records.jsonl import read_json, read_records, read_rows, written_whole
from steprag.scores.gold import em_of
from steprag.types import Prediction

PARTS = {"index": "reading the documents", "questions": "making the questions", "trees": "attempts at the questions",
         "index-train": "reading the training documents alone", "pairs": "choosing what to learn from",
         "sft": "training, first part", "agent": "training", "bare": "test: the bare model", "rag": "test: one search",
         "untrained": "test: untrained agent", "trained": "test: trained agent"}  # fmt: skip
"""Stages, as the page calls them."""
EXAMPLES = 20
"""Test questions that the page shows with their sources; and documents that were left out."""


def write_report(
    out: Path, contenders: Sequence[Contender], compared: dict[str, Any], stages: Pipeline, bills: dict[str, str],
    *, failed: bool,
) -> Path:  # fmt: skip
    """Writes the page; `compared` as in compare.json, `bills` by what they are of. Whatever documents and models said
    stands in it as text.
    """
    import jinja2  # no help needs it, nor numpy

    from preference.report.leakage import check_folder

    gates, last, skipped = read_json(out / "questions/gates.json"), contenders[-1], out / "index/skipped.jsonl"
    passed, differences = sum(gates["passed"].values()), compared["differences"].get(last.label, {})
    told = {
        "gates": gates, "words": GATES, "passed": passed, "failed": failed, "bills": bills,
        "trained": last.run.name == "trained",
        "runs": [(each.label, compared["runs"][each.label]) for each in contenders],
        "over": [(each.label, differences[each.label], shown(*map(differences[each.label].get, ("low", "high", "p"))))
                 for each in contenders if each.label in differences],
        "costs": [[cell.strip() for cell in line.strip("|").split("|")] for line in costs(out, stages)], "parts": PARTS,
        "skipped": [row for _, row in islice(read_rows(skipped), EXAMPLES)] if skipped.is_file() else [],
        "leaked": check_folder(out / "pairs", LeakageConfig(against=(str(out / "questions/test.jsonl"),),
                                                            encoder=None))["matches"],
        "examples": _examples(out / "index", last.run),
        "commands": [entry["command"] for entry in stages.stages.values()],
    }  # fmt: skip
    page = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = Path(__file__).with_name("report.html.j2").read_text(encoding="utf-8")
    with written_whole(out / "report.html") as stream:
        stream.write(page.from_string(template).render(told))
    return out / "report.html"


def _examples(index: Path, run: Path) -> list[dict[str, Any]]:
    """Test questions with what the last contender answered, what is right, and the passages that say it."""
    predictions = list(islice(read_records(run / "predictions.jsonl", Prediction), EXAMPLES))
    wanted = {key for one in predictions for key in one.metadata["supporting_ids"]}
    with PassageStore(index) as store:
        texts = {one.id: one for one in map(store.read, range(len(store))) if one.id in wanted}
    return [{"question": one.question, "golden": one.golden_answers[0], "said": one.prediction or f"({one.finish})",
             "right": em_of(one.prediction, one) == 1,
             "sources": [texts[key] for key in one.metadata["supporting_ids"]]} for one in predictions]  # fmt: skip
