"""The names that data sets and index builders give to the fields of a question and of a passage."""

from __future__ import annotations

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


def folded(name: str) -> str:
    """A field's name in lower case, without what joins its words."""
    return "".join(filter(str.isalnum, name.casefold()))


PASSAGE_NAMES = (*PASSAGE_IDS, *TEXTS, *TITLES)
QUESTION_NAMES = (*QUESTION_IDS, *QUESTIONS, *ANSWERS, *ALIASES, *CHOICES, *PLACES)
HEADS = frozenset(map(folded, (*PASSAGE_NAMES, *QUESTION_NAMES)))
"""Every name that a column of a table may have (`folded`)."""
