"""FlashRAG's result files (`intermediate_data.json`): a run of ours written as one, one of its own read as predictions.

Its package is not needed. What runs inside FlashRAG is an app.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from inference.predictions import read_predictions
from inference.scoring.scores import HARNESS
from steprag.batch.database import JOURNAL, JournalReader
from steprag.batch.worklist import failures_in
from steprag.config.load import parse_arguments
from steprag.config.recipes import RUNS, stem_of
from steprag.console.progress import say, say_next
from steprag.errors import DataError, counted
from steprag.records.inputs import as_document, question_from_row
from steprag.records.jsonl import existing, read_json, read_value, shaped, written_whole
from steprag.records.question_ids import is_per_file
from steprag.records.yaml_files import read_yaml
from steprag.types import Found, Prediction, Question, Usage

DATA = "intermediate_data.json"
CONFIG = "config.yaml"
LONGEST = 1 << 32
"""Bytes of its file that are read."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="steprag score export", description="Predictions of a run as FlashRAG's result file."
    )
    parser.add_argument("run", metavar="RUN", help="run folder of steprag infer")
    parser.add_argument("--out", metavar="DIR", help=f"folder for {DATA} [runs/flashrag-RUN]")
    given = parse_arguments(parser, argv)
    run = existing(given.run, "run folder")
    file = Path(given.out or f"{RUNS}/flashrag-{stem_of(run)}") / DATA
    predictions = list(read_predictions(run))
    items = [
        {"id": one.id.removeprefix(f"{one.dataset}/"), "question": one.question, "golden_answers": one.golden_answers,
         "metadata": one.metadata, "output": output}
        for one, output in zip(predictions, outputs(run, predictions), strict=True)
    ]  # fmt: skip
    with written_whole(file) as stream:
        json.dump(items, stream, indent=4, ensure_ascii=False)
    failed = len(failures_in(run).keys() - {one.id for one in predictions})
    say(f"score export: {counted(len(items), 'prediction')} in {file}; left out, since they failed: {failed}")
    say_next("view", run)
    return 0


def outputs(run: Path, predictions: Iterable[Prediction]) -> Iterator[dict[str, Any]]:
    """What FlashRAG keeps of a question's episode: `pred` ("" without an answer), `retrieval_result` (every passage
    found, once, in order), `steps` and `finish`. Texts come from the run's journal. Raises ConfigError without one.
    """
    journal = existing(run / JOURNAL, "journal of the run, which holds the passages' texts")
    with closing(JournalReader.reading(journal)) as calls:
        for one in predictions:
            texts = {p.id: p for found in calls.searches_of(one.id).values() for p in found}
            if lost := next((p.id for found in one.passages for p in found if p.id not in texts), None):
                raise DataError(journal, f"lacks passage {lost} of question {one.id}", remedy="copy the whole run")
            scores = {p.id: p.score for found in reversed(one.passages) for p in reversed(found)}
            ids = dict.fromkeys(p.id for found in one.passages for p in found)
            found = [{**as_document(texts[key]), "score": scores[key]} for key in ids]
            yield {"pred": one.prediction or "", "retrieval_result": found, "steps": [step.text for step in one.steps],
                   "finish": one.finish}  # fmt: skip


def is_results(folder: Path) -> bool:
    """Whether a folder holds FlashRAG's results, and is no run of ours."""
    return (folder / DATA).is_file() and not (folder / "manifest.json").is_file()


def read_results(folder: Path) -> tuple[dict[str, Any], list[Prediction], dict[str, str]]:
    """A run's identity, predictions, and the questions that have none (id → why). Raises DataError.

    The index is that of our folder, where the configuration names one, else what the configuration names.
    """
    config = read_yaml(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    index = str(config.get("index_path"))
    if (Path(index) / "manifest.json").is_file():
        index = str(read_json(Path(index) / "manifest.json").get("fingerprint"))
    items = read_value(folder / DATA, LONGEST, "run FlashRAG again", finite=False)
    predictions: dict[str, Prediction] = {}
    failed: dict[str, str] = {}
    with shaped(folder / DATA, remedy="give a folder that FlashRAG wrote"):
        for place, item in enumerate(items, 1):
            output = item.pop("output", None) or {}
            asked = _named(question_from_row(item, folder / DATA, place), config.get("dataset_name"))
            if asked.id in predictions or asked.id in failed:
                raise DataError(folder / DATA, f"two questions are called {asked.id}", line=place)
            if isinstance(output.get("pred"), str):
                predictions[asked.id] = _prediction(asked, output)
            else:
                failed[asked.id] = "no pred"
    return {"questions": None, "index": index, "harness": HARNESS}, [*predictions.values()], failed


def _named(asked: Question, dataset: object) -> Question:
    if not isinstance(dataset, str) or not is_per_file(asked.id):
        return asked
    return Question(f"{dataset}/{asked.id}", asked.question, asked.golden_answers, asked.metadata, dataset)


def _prediction(asked: Question, output: dict[str, Any]) -> Prediction:
    """`retrieval_results` holds a search a step (Search-R1's pipeline and its like), `retrieval_result` one search."""
    searches = output.get("retrieval_results") or {}
    listed = [one["docs"] for _, one in sorted(searches.items(), key=lambda one: int(one[0]))]
    listed = listed or ([output["retrieval_result"]] if output.get("retrieval_result") else [])
    said = output["pred"].strip()
    found = tuple(tuple(map(_found, docs)) for docs in listed)
    finish = str(output.get("finish", "answer" if said else "empty"))
    return Prediction(asked.id, asked.question, asked.golden_answers, said or None, (), found, Usage(), finish,
                      asked.metadata, dataset=asked.dataset)  # fmt: skip


def _found(document: dict[str, Any]) -> Found:
    title = document.get("title") or str(document.get("contents", "")).partition("\n")[0].strip('"')
    return Found(str(document.get("id", "")), str(title), document.get("score"))
