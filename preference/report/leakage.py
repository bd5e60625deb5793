"""`steprag pairs leakage`: are questions or prompts of a pairs folder in the files that models are evaluated on?

Four checks, each listing what it found: equal ids, unless they are unique within one file only (`test_0`); equal
questions after normalisation; an evaluation question of which `NGRAM` words in a row stand in a prompt or a step
(shorter questions whole, from 6 words); near duplicates by the cosine of sentence vectors. A warning names PopQA's
questions: PopQA has no train split, so they can only come from the set that it is scored on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from preference.config import LeakageConfig, LeakageStageConfig
from preference.report.card import note_leakage
from steprag.batch.datasets import questions_at
from steprag.config.load import add_options, config_from, parse_arguments
from steprag.console.progress import Progress, say, say_next
from steprag.engines.pretrained import loading
from steprag.engines.threads import one_load
from steprag.errors import counted
from steprag.records.inputs import read_questions
from steprag.records.jsonl import existing, file_hash, read_records, read_rows, shaped
from steprag.records.question_ids import is_per_file
from steprag.scores.gold import is_popqa
from steprag.scores.metrics import normalise
from steprag.types import Question

KINDS = ("id", "text", "ngram", "embedding")
NGRAM = 13
"""Words in a row that must not occur in a prompt."""
SHORTEST = 6
"""Words that a question needs for its words to be looked for in prompts."""
NAMED = 100
"""Evaluation questions with the same words that are listed at most; a match then says by how many they are shared."""

Run = tuple[str, ...]
Hits = tuple[tuple[tuple[int, int], dict[str, Any]], ...]
"""What a text shares with evaluation questions: the number of a file and the place of its question; the words."""


@dataclass(frozen=True)
class Evaluation:
    """An evaluation file: its questions, and places in that list by id, by normalised text and by run of words."""

    path: Path
    name: str
    questions: list[Question]
    ids: dict[str, int]
    texts: dict[str, list[int]]
    runs: dict[Run, list[int]]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="steprag pairs leakage", description="Looks for questions of evaluation files in a pairs folder."
    )
    parser.add_argument("--pairs", required=True, metavar="DIR", help="folder that steprag pairs wrote")
    parser.add_argument(
        "--against", nargs="+", required=True, metavar="FILE", help="evaluation questions, as for --questions"
    )
    parser.add_argument("--json", action="store_true", help="what was found as JSON on standard output")
    add_options(parser, LeakageStageConfig)
    given = parse_arguments(parser, argv)
    config = config_from(LeakageStageConfig, given, leakage__against=given.against).leakage
    found = check_folder(existing(given.pairs, "pairs folder"), config)
    sys.stdout.write(json.dumps(found, ensure_ascii=False, indent=2) + "\n" if given.json else _lines(found))
    say_next("train", given.pairs)
    return 0


def check_folder(folder: Path, config: LeakageConfig) -> dict[str, Any]:
    """Checks a finished pairs folder, writes `leakage.json` and says so in the card; returns what was found."""
    questions = list(read_records(existing(folder / "questions.jsonl", "questions of the pairs folder"), Question))
    paths = [questions_at(name, what="evaluation file") for name in config.against]
    names = [path.name for path in paths]
    if len(set(names)) < len(names):  # named as they were given
        names = [*map(str, paths)]
    files = [read_evaluation(path, name) for path, name in zip(paths, names, strict=True)]
    matches = [match for file in files for match in _same_questions(questions, file)]
    matches += _runs_in_prompts(folder, files)
    if config.encoder:
        matches += near_duplicates(questions, files, config.encoder, config.similarity)
    found = _found(questions, files, matches, config)
    note_leakage(folder, found)
    for warning in found["warnings"]:
        say(f"leakage: {warning}")
    return found


def read_evaluation(path: Path, name: str) -> Evaluation:
    """The questions of an evaluation file, ready to be looked up."""
    questions = read_questions(path)
    texts, runs = defaultdict[str, list[int]](list), defaultdict[Run, list[int]](list)
    for place, question in enumerate(questions):
        text = normalise(question.question)
        texts[text].append(place)
        for run in dict.fromkeys(_runs(tuple(text.split()))):
            runs[run].append(place)
    ids = {question.id: place for place, question in enumerate(questions)}
    return Evaluation(path, name, questions, ids, dict(texts), dict(runs))


def _runs(words: Run) -> list[Run]:
    """Every `NGRAM` words in a row; a question of fewer words whole, unless it is too short to mean anything."""
    if len(words) < NGRAM:
        return [words] if len(words) >= SHORTEST else []
    return [words[start : start + NGRAM] for start in range(len(words) - NGRAM + 1)]


def _same_questions(questions: list[Question], file: Evaluation) -> Iterator[dict[str, Any]]:
    for question in questions:
        if not is_per_file(question.id) and (place := file.ids.get(question.id)) is not None:
            yield _match("id", file, place, question.id)
        for place, shared in _named(file.texts.get(normalise(question.question), ())):
            yield _match("text", file, place, question.id, **shared)


def _named(places: Sequence[int]) -> Iterator[tuple[int, dict[str, int]]]:
    """The first `NAMED` places, each with what its match says of how many there are."""
    shared = {"shared_by": len(places)} if len(places) > NAMED else {}
    return ((place, shared) for place in places[:NAMED])


def _match(kind: str, file: Evaluation, place: int, question_id: str, **more: Any) -> dict[str, Any]:
    other = file.questions[place]
    return {"kind": kind, "file": file.name, "question_id": question_id, "evaluation_id": other.id,
            "evaluation_question": other.question, **more}  # fmt: skip


def _runs_in_prompts(folder: Path, files: list[Evaluation]) -> list[dict[str, Any]]:
    """One match for every question of the folder and evaluation question of which a run of words was found."""
    lengths: dict[Run, set[int]] = defaultdict(set)  # by the first two words of a run, how long it may be
    for run in (run for file in files for run in file.runs):
        lengths[run[:2]].add(len(run))
    known: dict[int, Hits] = {}  # a step stands in the rows of several questions, and is read once
    found: dict[tuple[int, int, str], dict[str, Any]] = {}
    for path in sorted(folder.glob("*.train.jsonl")) + sorted(folder.glob("*.val.jsonl")):
        for number, row in read_rows(path):
            with shaped(path, line=number):
                texts, question_id = list(_texts(row)), str(row["question_id"])
            for text in texts:
                key = hash(text)
                if key not in known:
                    known[key] = _hits(normalise(text).split(), files, lengths)
                for (which, place), shared in known[key]:
                    if (which, place, question_id) not in found:
                        match = _match("ngram", files[which], place, question_id, **shared)
                        found[which, place, question_id] = match
    return list(found.values())


def _hits(words: list[str], files: list[Evaluation], lengths: dict[Run, set[int]]) -> Hits:
    hits: dict[tuple[int, int], dict[str, Any]] = {}
    for run in _candidate_runs(words, lengths):
        for which, file in enumerate(files):
            for place, shared in _named(file.runs.get(run, ())):
                hits.setdefault((which, place), {"words": " ".join(run), **shared})
    return tuple(hits.items())


def _candidate_runs(words: list[str], lengths: dict[Run, set[int]]) -> Iterator[Run]:
    for start in range(len(words) - 1):
        for length in lengths.get((words[start], words[start + 1]), ()):
            yield tuple(words[start : start + length])


def _texts(row: dict[str, Any]) -> Iterator[str]:
    """What a row would teach: its prompt without the system message, and its completions."""
    asked = [message for message in row["prompt"] if message["role"] != "system"]
    said = [row.get(name, ()) for name in ("chosen", "rejected", "completion")]
    for messages in (asked, *said, *row.get("completions", ())):
        yield from (str(message["content"]) for message in messages)


def near_duplicates(
    questions: list[Question], files: list[Evaluation], encoder: str, least: float
) -> list[dict[str, Any]]:
    """For every question, the evaluation questions whose vectors have a cosine of `least` or more with its own."""
    model = _load(encoder)
    everything = [question.question for question in questions]
    vectors = _encode(model, everything)
    matches: list[dict[str, Any]] = []
    for file in files:
        others = _encode(model, [question.question for question in file.questions])
        for start in range(0, len(vectors), 1024):  # a block of cosines at a time
            cosines = vectors[start : start + 1024] @ others.T
            for row, place in np.argwhere(cosines >= least):
                cosine = round(float(cosines[row, place]), 4)
                matches.append(_match("embedding", file, int(place), questions[start + row].id, cosine=cosine))
    return matches


def _load(encoder: str) -> Any:
    """A sentence-transformers model: `minilm`, the embedded one, or a folder. Raises ConfigError."""
    from steprag.engines.models import embedded_encoder

    folder = embedded_encoder() if encoder == "minilm" else existing(encoder, "encoder")
    with one_load(), loading(f"leakage.encoder {folder}"):
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(
            str(folder), device="cpu", local_files_only=True, trust_remote_code=False,
            model_kwargs={"use_safetensors": True},
        )  # fmt: skip


def _encode(model: Any, texts: list[str]) -> np.ndarray:
    """Unit vectors, one a text."""
    with Progress("leakage: vectors", len(texts), "questions") as bar:
        rows = []
        for start in range(0, len(texts), 256):
            batch = texts[start : start + 256]
            rows.append(model.encode(batch, normalize_embeddings=True, show_progress_bar=False))
            bar.advance(len(batch))
    return np.concatenate(rows) if rows else np.zeros((0, 1), dtype=np.float32)


def _found(
    questions: list[Question], files: list[Evaluation], matches: list[dict[str, Any]], config: LeakageConfig
) -> dict[str, Any]:
    """The matches with their counts: a question that is in a file twice counts once a kind."""
    pairs = {(match["file"], match["kind"], match["question_id"]) for match in matches}
    counts = Counter((file, kind) for file, kind, _ in pairs)
    warnings = []
    if popqa := [question.id for question in questions if is_popqa(question)]:
        warnings.append(
            f"{len(popqa)} questions are PopQA's, which has no train split: they can only come from its test set, so a "
            "model trained on this folder must not be scored on PopQA"
        )
    for file in files:
        if total := len({q for name, _, q in pairs if name == file.name}):
            warnings.append(f"{total} of {counted(len(questions), 'question')} overlap with {file.name}")
    return {
        "questions": len(questions),
        "config": {"ngram": NGRAM, "encoder": config.encoder, "similarity": config.similarity},
        "kinds": [kind for kind in KINDS if kind != "embedding" or config.encoder],
        "files": [
            {"file": file.name, "sha256": file_hash(file.path), "questions": len(file.questions),
             "found": {kind: counts[file.name, kind] for kind in KINDS}}
            for file in files
        ],
        "warnings": warnings,
        "matches": matches,
    }  # fmt: skip


def _lines(found: dict[str, Any]) -> str:
    head = f"{'evaluation file':<32}{'questions':>10}" + "".join(f"{kind:>11}" for kind in found["kinds"])
    rows = [
        f"{file['file']:<32}{file['questions']:>10}" + "".join(f"{file['found'][kind]:>11}" for kind in found["kinds"])
        for file in found["files"]
    ]
    matches, asked = counted(len(found["matches"]), "match"), counted(found["questions"], "question")
    return "\n".join([head, *rows, f"{matches} of {asked}: leakage.json", ""])
