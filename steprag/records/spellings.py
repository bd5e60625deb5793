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
             "claim", "goal", "ctx", "startphrase", "sentence")  # fmt: skip
ANSWERS = ("golden_answers", "gold_answers", "gold_answer", "ground_truths", "ground_truth", "reference_answers",
           "reference_answer", "answers", "answer", "possible_answers", "correct_answer", "best_answer",
           "correct_answers", "answers_spans", "answerKey", "final_answer", "final_decision", "expected_answer",
           "references", "reference", "output", "target", "response")  # fmt: skip
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
ANSWERABLE = {"answerable": True, "isanswerable": True, "isimpossible": False, "unanswerable": False, "noanswer": False}
"""What fields say, folded, where a question has an answer."""
ASKED = ("stem", "text", "question")
"""Where a question that is an object holds its text (ARC's and CommonsenseQA's own files, NarrativeQA)."""


def folded(name: str) -> str:
    """A field's name in lower case, without what joins its words."""
    return "".join(filter(str.isalnum, name.casefold()))


TURNING = frozenset({*map(folded, (*PLACES, *CHOICES)), "labels", "weight", "weights", "train", "mask", "lossmask"})
"""Fields, folded, that may turn a row's meaning round where nobody reads them."""
PASSAGE_NAMES = (*PASSAGE_IDS, *TEXTS, *TITLES)
QUESTION_NAMES = (*QUESTION_IDS, *QUESTIONS, *ANSWERS, *ALIASES, *CHOICES, *PLACES)
HEADS = frozenset(map(folded, (*PASSAGE_NAMES, *QUESTION_NAMES)))
"""Every name that a column of a table may have (`folded`)."""
