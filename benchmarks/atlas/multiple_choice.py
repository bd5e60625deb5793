"""Questions of Atlas in MedQA's form: four choices with letters, one of them right.

The wrong choices are answers to the same relation about other things, from every split, so that they are of one kind.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase

from steprag.scores.metrics import normalise

CHOICES = 4
KINDS = ("one-hop", "bridge")
SEED = "atlas-choices"


def choice_rows(folder: Path, split: str) -> list[dict[str, object]]:
    """The open questions of a split, whose files lie in `folder`, as rows of MedQA's files."""
    by_relation: dict[str, list[str]] = {}
    for name in ("warmstart", "train", "dev", "test"):
        for row in _open(folder / f"{name}.jsonl"):
            by_relation.setdefault(_relation(row), []).append(row["golden_answers"][0])
    rows = (_row(row, by_relation[_relation(row)]) for row in _open(folder / f"{split}.jsonl"))
    return [row for row in rows if row is not None]


def _open(file: Path) -> Iterator[Mapping]:  # type: ignore[type-arg]
    with file.open(encoding="utf-8") as lines:
        yield from (row for row in map(json.loads, lines) if row["metadata"]["type"] in KINDS)


def _relation(row: Mapping) -> str:  # type: ignore[type-arg]
    return row["metadata"]["relations"][-1]


def _row(row: Mapping, alike: Sequence[str]) -> dict[str, object] | None:  # type: ignore[type-arg]
    """The question with its choices; None where there are too few others of its kind."""
    golden, rng = row["golden_answers"], random.Random(f"{SEED}/{row['id']}")
    taken = {normalise(answer) for answer in golden}
    wrong: list[str] = []
    for other in rng.sample(alike, len(alike)):
        if normalise(other) not in taken and len(wrong) < CHOICES - 1:
            taken.add(normalise(other))
            wrong.append(other)
    if len(wrong) < CHOICES - 1:
        return None
    shown = [golden[0], *wrong]
    rng.shuffle(shown)
    options = dict(zip(ascii_uppercase, shown, strict=False))
    letter = next(letter for letter, text in options.items() if text == golden[0])
    return {"question": row["question"], "answer": golden[0], "options": options, "meta_info": "atlas",
            "answer_idx": letter}  # fmt: skip
