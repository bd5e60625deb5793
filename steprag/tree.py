"""A finished search: the tree and its nodes, their checks, and functions that look things up in them.

A tree is a flat list of nodes; children are found by `parent`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from steprag.errors import counted, quoted
from steprag.types import COUNTABLE, Found, Message, Question, Usage, omitted

TREE_FORMAT = 1
"""The only version of a tree's line so far."""
ROLES = frozenset({"system", "user", "assistant"})


@dataclass(frozen=True)
class Belief:
    """How likely a policy finds a golden answer at a state, were it to answer there.

    `logp`: the natural logarithm of the probability of `answer` and its closing tag, `tokens` tokens in all; of several
    golden answers the likeliest. At most 0. `usage`: what it took to ask, which no node's own `usage` holds.
    """

    answer: str
    logp: float
    tokens: int
    usage: Usage = Usage()


@dataclass(frozen=True)
class Node:
    """A node of a tree: the step that led here and what the search learnt about it.

    The root has parent None, depth 0 and no action. `depth` is the number of steps from the question. `value` is the
    mean of the rewards backed up through the node, None where none was. `failure` names why a completion was refused
    (`steprag.agent.grammar.FAILURES`); such a node is terminal and has neither content nor value. `messages` is the
    prompt that its children saw, present where the node was expanded. `usage` is what the request that sampled it cost;
    siblings of one request share it, so it stands on the first of them alone. `belief`: the policy's in the golden
    answer at this node's state, where that was asked (`search.score`, `steprag trees belief`). `golden_found`, of a
    search: whether a golden answer stands in the passages that it found, word for word; None where nobody looked, and
    on questions that can be guessed. `reasoning`: characters that were split off the completion, which the journal
    keeps."""

    id: int
    parent: int | None
    depth: int
    action: str | None = None
    text: str = ""
    content: str | None = None
    visits: int = 0
    value: float | None = None
    terminal: bool = False
    failure: str | None = None
    prediction_f1: float | None = None
    judge: dict[str, Any] | None = None
    passages: tuple[Found, ...] = ()
    messages: tuple[Message, ...] | None = None
    usage: Usage = Usage()
    belief: Belief | None = omitted()
    golden_found: bool | None = omitted()
    reasoning: int | None = omitted()

    def __repr__(self) -> str:
        worth = "" if self.value is None else f", value {self.value:.2f}"
        return f"Node({self.id}, {self.action or self.failure or 'root'}, depth {self.depth}{worth})"


@dataclass(frozen=True)
class Tree:
    """A finished search: nodes in order of creation, so `nodes[i].id == i` and a parent stands before its children.

    `iterations`: how many the search took. `known`: ids of the nodes that an earlier round's tree has too, None where
    no earlier round was given. `grammar`: the name of the grammar that its steps follow; older trees have none
    (`steprag.agent.profiles.grammar_of_tree`). Raises ValueError where the nodes make no sense.
    """

    format: int
    question: Question
    status: str
    usage: Usage
    nodes: tuple[Node, ...]
    iterations: int | None = omitted()
    known: tuple[int, ...] | None = omitted()
    grammar: str | None = omitted()
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.format != TREE_FORMAT:
            raise ValueError(f"format {self.format} is not known; this version reads {TREE_FORMAT}")
        if not self.nodes:
            raise ValueError("a tree needs at least its root")
        for place, node in enumerate(self.nodes):
            if fault := _bad_link(self.nodes, place) or _bad_number(node) or _bad_role(node):
                raise ValueError(f"nodes[{place}]: {fault}")
        if self.known and not 0 <= min(self.known) <= max(self.known) < len(self.nodes):
            raise ValueError("known names a node that the tree lacks")

    def __repr__(self) -> str:
        right = sum(node.prediction_f1 == 1 for node in self.nodes)
        return (f"Tree({quoted(self.question.question)}, {counted(len(self.nodes), 'node')}, "
                f"{counted(right, 'right answer')})")  # fmt: skip


@dataclass(frozen=True)
class Failure:
    """A question that could not be finished: the error class, one line of detail, and the tree as far as it grew."""

    id: str
    reason: str
    detail: str
    tree: Tree | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def _bad_link(nodes: tuple[Node, ...], place: int) -> str | None:
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


def _bad_number(node: Node) -> str | None:
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


def _bad_role(node: Node) -> str | None:
    """The first role of a node's prompt that no chat has, None where all are known."""
    if not node.messages:
        return None
    unknown = {message["role"] for message in node.messages} - ROLES
    return f"a message has the role {quoted(min(unknown))}" if unknown else None


def discounted(score: float, steps: int, alpha: float) -> float:
    """SPRE's reward of an episode: `score` × alpha^steps, so that of two right episodes the shorter is better.

    `score` is the answer's F1 (0 to 1), `steps` the number of completions (arXiv 2505.14069, eq. 3).
    """
    return score * alpha**steps


def children_of(tree: Tree) -> list[list[Node]]:
    """For every node id, its children in order of creation."""
    children: list[list[Node]] = [[] for _ in tree.nodes]
    for node in tree.nodes:
        if node.parent is not None:
            children[node.parent].append(node)
    return children


def path_to(tree: Tree, node: Node) -> list[Node]:
    """The nodes from the root to `node`, both included."""
    path = [node]
    while path[-1].parent is not None:
        path.append(tree.nodes[path[-1].parent])
    return path[::-1]


def as_reply(node: Node) -> tuple[Message, ...]:
    """A node's completion, exactly as sampled, as the assistant's turn."""
    return (Message(role="assistant", content=node.text),)
