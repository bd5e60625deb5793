"""One row of a question file or a corpus, in the field names that data sets and index builders use."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from steprag.errors import DataError, quoted, shortened
from steprag.records.json_text import NotJson, decoded
from steprag.types import Passage

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
             "claim")  # fmt: skip
ANSWERS = ("golden_answers", "gold_answers", "gold_answer", "ground_truths", "ground_truth", "reference_answers",
           "reference_answer", "answers", "answer", "possible_answers", "correct_answer", "best_answer",
           "correct_answers", "answers_spans", "answerKey", "final_answer", "final_decision", "expected_answer",
           "references", "reference", "output", "target", "response")  # fmt: skip
"""Names of golden answers alone stand first: beside `ground_truth` an `answer` is a model's (RAGAS)."""
ALIASES = ("answer_aliases", "aliases", "alt_ans", "correct_answers")
"""More golden answers beside those of ANSWERS (MuSiQue, CRAG, TruthfulQA)."""
CHOICES = ("choices", "options", "endings")
PLACES = ("answer_idx", "answer_index", "correct", "correct_option", "label", "cop")
"""Which of the choices is right, where no name of ANSWERS is there."""
ASKED = ("stem", "text", "question")
"""Where a question that is an object holds its text (ARC's and CommonsenseQA's own files, NarrativeQA)."""
_KILT = re.compile(r"(?:Section|BULLET)::::-?\s*")
"""Marks of headings and lists in KILT's texts."""
_ITEM = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|None|-?\d+(?:\.\d+)?)"""
_PYTHON_LIST = re.compile(rf"\[\s*(?=['\"]){_ITEM}(?:[\s,]+{_ITEM})*[\s,]*\]", re.DOTALL)
"""A list of texts as Python writes it, or as NumPy does, without commas."""
_ITEMS = re.compile(_ITEM, re.DOTALL)
LONGEST_LITERAL = 2**16
"""Characters of a text that is read as a list or an object of Python's."""


def folded(name: str) -> str:
    """A field's name in lower case, without what joins its words."""
    return "".join(filter(str.isalnum, name.casefold()))


_PASSAGE = (*PASSAGE_IDS, *TEXTS, *TITLES)
QUESTION_NAMES = (*QUESTION_IDS, *QUESTIONS, *ANSWERS, *ALIASES, *CHOICES, *PLACES)
HEADS = frozenset(map(folded, (*_PASSAGE, *QUESTION_NAMES)))
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
    return isinstance(value, dict) and _joined(first(spelt(value, _PASSAGE), TEXTS)) is not None


def plain(value: object) -> str | None:
    """A text or finite number as text; None for anything else. A whole number has no point: 3.0 is "3"."""
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() else str(value)
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None


def keys_of(row: object) -> str:
    """The keys of a row for a message, or what it is in place of an object."""
    return shortened(", ".join(map(repr, row)), 160) if isinstance(row, dict) else f"none, it is {quoted(row)}"


def passage_from_row(row: object, path: Path | str, line: int) -> Passage:
    """A passage from any spelling (PASSAGE_IDS, TEXTS, TITLES), whose text may be a list of paragraphs or sentences.

    Without a title of its own, the first line of `contents` is the title (FlashRAG) and a single line is a text without
    a title. Titles lose the quotation marks that FlashRAG's corpora wrap them in. Raises DataError.
    """
    fields = spelt(row, _PASSAGE) if isinstance(row, dict) else {}
    if beside := fields.get("metadata"):  # LangChain keeps a title, and sometimes the id, there
        inner = literal(beside) if isinstance(beside, str) else beside
        fields = {**spelt(inner, (*PASSAGE_IDS, *TITLES)), **fields} if isinstance(inner, dict) else fields
    name, given = plain(first(fields, PASSAGE_IDS)), first(fields, TEXTS)
    text = _joined(given)
    if not (name or "").strip() or text is None:
        needs = '"contents", or "title" and "text"' if text is None and (name or "").strip() else 'an "id"'
        raise DataError(path, f"a passage needs {needs}; keys found: {keys_of(row)}", line=line)
    title = _bare(plain(first(fields, TITLES)) or "")
    if given is fields.get("contents") or isinstance(given, list):
        title, text = _split(title, text)
    if not text.strip():
        raise DataError(path, f"passage {quoted(name)} has no text", line=line, remedy="the first line is the title")
    return Passage(name or "", title, text.strip())


def as_document(passage: Passage) -> dict[str, str]:
    """A passage in both spellings; `contents` is FlashRAG's."""
    title = f'"{passage.title}"' if passage.title else ""
    return {"id": passage.id, "contents": f"{title}\n{passage.text}", "title": passage.title, "text": passage.text}


def _split(title: str, text: str) -> tuple[str, str]:
    """Title and text: the first line is the title where none is given, and goes where it is the one that is given."""
    first, newline, rest = text.partition("\n")
    bare = _bare(first)
    if not newline and (bare == first.strip() or '"' in bare):  # one line, and no title in quotation marks
        return title, text
    return (bare, rest) if title in ("", bare) else (title, text)


def first(fields: dict[str, Any], names: Sequence[str]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _joined(value: object) -> str | None:
    """A text, or the paragraphs or sentences of a list (of lists) as one; None for anything else."""
    if not isinstance(value, list):
        return value if isinstance(value, str) else None
    parts = [part for one in value for part in (one if isinstance(one, list) else [one])]
    if not all(isinstance(part, str) for part in parts):
        return None
    return "\n".join(filter(None, (_KILT.sub("", part).strip() for part in parts)))


def _bare(title: str) -> str:
    title = title.strip()
    return title[1:-1] if len(title) > 1 and title[0] == title[-1] == '"' else title


def literal(text: str) -> Any:
    """The list or object that a text holds as JSON, Python or NumPy write it; None for any other text."""
    text = text.strip()
    if len(text) > LONGEST_LITERAL or text[:1] not in ("[", "{"):
        return None
    with suppress(NotJson):
        return decoded(text)
    try:
        if text[0] == "{":
            value = ast.literal_eval(text)
        else:  # item by item: Python would join texts without a comma between
            value = [ast.literal_eval(item) for item in _ITEMS.findall(text)] if _PYTHON_LIST.fullmatch(text) else None
        return decoded(json.dumps(value))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
