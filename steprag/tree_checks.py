"""What makes the nodes of a tree no tree: links, numbers and roles that make no sense, whoever wrote the file."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from steprag.errors import quoted

if TYPE_CHECKING:
    from steprag.types import Node

ROLES = frozenset({"system", "user", "assistant"})
COUNTABLE = 2**53
"""Counts above it are not exact as floats."""


def bad_link(nodes: tuple[Node, ...], place: int) -> str | None:
    """Why the node does not belong at this place of a tree; None where it does. The nodes before it are right."""
    node = nodes[place]
    parent = node.parent
    if node.id != place:
        return "its id is not its place"
    if place == 0 and parent is not None:
        return "the root has a parent"
    if place and (parent is None or not 0 <= parent < place):
        return "its parent is no node before it"
    if node.depth != (0 if parent is None else nodes[parent].depth + 1):
        return "its depth is not one more than its parent's"
    return None


def bad_number(node: Node) -> str | None:
    """The first number of a node that is out of its range, None where all are within."""
    value, score = node.value, node.prediction_f1
    if not 0 <= node.visits <= COUNTABLE:
        return "visits is no count"
    if value is not None and not math.isfinite(value):
        return "value is not finite"
    if score is not None and not 0 <= score <= 1:
        return "prediction_f1 is not between 0 and 1"
    if node.belief is not None and not -math.inf < node.belief.logp <= 0:
        return "belief.logp is no logarithm of a probability"
    judged = node.judge.get("score") if node.judge else None
    if judged is not None and not (isinstance(judged, int | float) and 0 <= judged <= 1):
        return "judge.score is not between 0 and 1"
    return None


def bad_role(node: Node) -> str | None:
    """The first role of a node's prompt that no chat has, None where all are known."""
    if not node.messages:
        return None
    unknown = {message["role"] for message in node.messages} - ROLES
    return f"a message has the role {quoted(min(unknown))}" if unknown else None
