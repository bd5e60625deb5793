"""Names that data sets and index builders give to the fields of questions and passages; a row's fields by our names."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from steprag.errors import quoted, shortened

PASSAGE_IDS = ("id", "_id", "pid", "passage_id", "psg_id", "chunk_id", "docid", "doc_id", "document_id", "docno",
               "pmid", "cord_uid", "uid", "uuid", "idx")  # fmt: skip
"""Of several names of one field the first that is not null counts. A chunk's own id stands before its document's. Case
and joints do not count: `Final answer`, `FINAL_ANSWER` and `finalAnswer` are one name (`folded`).
"""
TEXTS = ("contents", "text", "passage", "segment", "content", "page_content", "body", "passage_text", "paragraph",
         "paragraph_text", "sentences", "chunk", "chunk_text", "document", "abstract")  # fmt: skip
TITLES = ("title", "wikipedia_title", "page_title", "doc_title", "article_title", "headline")
QUESTION_IDS = ("id", "_id", "qid", "question_id", "query_id", "pubid", "task_id", "interaction_id", "record_id")
QUESTIONS = ("question", "query", "input", "problem", "question_stem", "question_text", "stem", "prompt", "user_input",
             "claim", "goal", "ctx", "startphrase", "sentence")  # fmt: skip
ANSWERS = ("golden_answers", "gold_answers", "gold_answer", "ground_truths", "ground_truth", "reference_answers",
           "reference_answer", "answers", "answer", "possible_answers", "correct_answer", "best_answer",
           "correct_answers", "answers_spans", "answerKey", "final_answer", "final_decision", "expected_answer",
           "answer_text", "references", "reference", "output", "target", "response")  # fmt: skip
"""Names of golden answers alone stand first: beside `ground_truth` an `answer` is a model's (RAGAS)."""
ALIASES = ("answer_aliases", "aliases", "alt_ans", "correct_answers", "possible_answers", "aug_answer", "aug_answers",
           "answer_alias", "answers_aliases", "o_aliases", "alternative_answers", "acceptable_answers")  # fmt: skip
"""More golden answers beside those of ANSWERS (MuSiQue, CRAG, TruthfulQA, ASearcher, PopQA)."""
CHOICES = ("choices", "options", "endings", "option", "choice", "answer_choices", "answer_options", "option_list",
           "mc1_targets")  # fmt: skip
PLACES = ("answer_idx", "answer_index", "correct", "correct_option", "label", "cop", "gold_label",
          "gold_index", "correct_answer_id", "correct_idx", "correct_index", "correct_choice", "answer_id",
          "answer_label")  # fmt: skip
"""Which of the choices is right."""
FROM_ONE = ("gold_label",)
"""Those that count from 1 (QuALITY)."""
WRONG = frozenset({"distractor", "distractors", "incorrectanswer", "incorrectanswers", "wronganswer", "wronganswers"})
"""Choices that are wrong, beside a right answer; folded, and without a number behind."""
CONTEXTS = ("context", "passage", "article", "premise", "story")
"""Texts that a question with choices may be about: a question is asked without them."""
_FALSE, _TRUE = ("false", "0", "no"), ("true", "1", "yes")
UNANSWERABLE = {"answerable": _FALSE, "isanswerable": _FALSE, "isimpossible": _TRUE, "unanswerable": _TRUE,
                "noanswer": _TRUE}  # fmt: skip
"""Fields, folded, and what they say where a question has no answer."""
ASKED = ("stem", "text", "question")
"""Where a question that is an object holds its text (ARC's and CommonsenseQA's own files, NarrativeQA)."""


_KILT = re.compile(r"(?:Section|BULLET)::::-?\s*")
"""Marks of headings and lists in KILT's texts."""


def folded(name: str) -> str:
    """A field's name in lower case, without what joins its words."""
    return "".join(filter(str.isalnum, name.casefold()))


TURNING = frozenset({*map(folded, (*PLACES, *CHOICES)), "labels", "weight", "weights", "train", "mask", "lossmask"})
"""Fields, folded, that may turn a row's meaning round where nobody reads them."""
PASSAGE_NAMES = (*PASSAGE_IDS, *TEXTS, *TITLES)
QUESTION_NAMES = (*QUESTION_IDS, *QUESTIONS, *ANSWERS, *ALIASES, *CHOICES, *PLACES)
HEADS = frozenset(map(folded, (*PASSAGE_NAMES, *QUESTION_NAMES)))
"""Every name that a column of a table may have (`folded`)."""


@lru_cache(maxsize=256)
def _respelt(keys: tuple[str, ...], names: tuple[str, ...]) -> dict[str, str]:
    """Keys of a row that are a name in another case or with other joints, and that name; of two keys the first."""
    free = {folded(name): name for name in reversed(names) if name not in keys}
    found = {key: free.pop(folded(key), "") for key in keys if key not in names}
    return {key: name for key, name in found.items() if name}


def spelt(row: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The row with the names of a table as the table spells them."""
    known = _respelt(tuple(row), names)
    return {known.get(key, key): value for key, value in row.items()} if known else row


def first(fields: dict[str, Any], names: Sequence[str]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def text_of(metadata: dict[str, Any], key: str) -> str | None:
    value = metadata.get(key)
    return value if isinstance(value, str) and value.strip() else None


def plain(value: object) -> str | None:
    """A text or finite number as text; None for anything else. A whole number has no point: 3.0 is "3"."""
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() else str(value)
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None


def keys_of(row: object) -> str:
    """The keys of a row for a message, or what it is in place of an object."""
    return shortened(", ".join(map(repr, row)), 160) if isinstance(row, dict) else f"none, it is {quoted(row)}"


def joined(value: object) -> str | None:
    """A text, or the paragraphs or sentences of a list (of lists) as one; None for anything else."""
    if not isinstance(value, list):
        return value if isinstance(value, str) else None
    parts = [part for one in value for part in (one if isinstance(one, list) else [one])]
    if not all(isinstance(part, str) for part in parts):
        return None
    return "\n".join(filter(None, (_KILT.sub("", part).strip() for part in parts)))


def has_id(value: dict[str, Any]) -> bool:
    """Whether an object has an id of its own, as no envelope around rows has."""
    names = (*PASSAGE_IDS, *QUESTION_IDS)
    return plain(first(spelt(value, names), names)) is not None


def is_question(value: object) -> bool:
    """Whether a JSON value is a row with a question."""
    asked = first(spelt(value, QUESTION_NAMES), QUESTIONS) if isinstance(value, dict) else None
    return isinstance(asked, str) or (isinstance(asked, dict) and bool(asked.keys() & {*ASKED}))


def is_passage(value: object) -> bool:
    """Whether a JSON value is a row with a text, be it without an id."""
    return isinstance(value, dict) and joined(first(spelt(value, PASSAGE_NAMES), TEXTS)) is not None


def is_talk(value: dict[str, Any]) -> bool:
    """Whether an object is a row with messages of a conversation, in OpenAI's form or ShareGPT's."""
    firsts = [one[0].keys() for one in value.values() if isinstance(one, list) and one and isinstance(one[0], dict)]
    return any({"role", "content"} <= keys or {"from", "value"} <= keys for keys in firsts)
