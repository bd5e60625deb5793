"""Pairs that no tree gave."""

from __future__ import annotations

from typing import Any

from steprag.records.training_rows import Pair
from steprag.types import Message, Question


def unscored_pair(
    question: Question, prompt: tuple[Message, ...], texts: tuple[str, str], actions: tuple[str, str], depth: int
) -> Pair:
    """A pair that no tree gave: nodes, rewards and visits are None. `texts` and `actions`: chosen, then rejected."""
    chosen, rejected = ((Message(role="assistant", content=text),) for text in texts)
    names = ("tree", "chosen_node", "rejected_node", "chosen_reward", "rejected_reward", "margin", "chosen_visits",
             "rejected_visits")  # fmt: skip
    unknown: Any = dict.fromkeys(names)
    return Pair(
        prompt=prompt, chosen=chosen, rejected=rejected, question_id=question.id, source=question.metadata["dataset"],
        golden_answers=question.golden_answers, action=actions[0], rejected_action=actions[1], depth=depth, **unknown,
    )  # fmt: skip
