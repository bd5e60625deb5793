"""A tree while it grows: branches that refer to one another, numbered once their wave is over."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from steprag.tree import TREE_FORMAT, Node, Tree
from steprag.types import Question, State, Usage


@dataclass(eq=False)
class Branch:
    """A node while its tree grows.

    `node` holds what is settled when it is made; `finished` adds the rest (nodes are copied to be changed). `id`: its
    place in the tree, -1 until its wave is over. `visits` counts the rewards backed up through it, `total` sums them;
    `pending` counts the leaves below that are in flight (WU-UCT). `full`: it has been asked for all its children.
    `closed`: nothing below is left to explore. `busy`: not to be selected in this wave.
    """

    node: Node
    state: State
    parent: Branch | None
    id: int = -1
    children: list[Branch] = field(default_factory=list)
    visits: int = 0
    total: float = 0.0
    pending: int = 0
    sampled: int = 0
    full: bool = False
    closed: bool = False
    busy: bool = False


@dataclass(eq=False)
class Growth:
    """A tree in progress. `branches[i].id == i`; `right` and `wrong` count the answers so far; `gained`: a step has
    raised the policy's belief in the golden answer; `short`: a replay's journal had fewer calls than the search wanted.
    """

    question: Question
    branches: list[Branch] = field(default_factory=list)
    usage: Usage = Usage()
    iterations: int = 0
    right: int = 0
    wrong: int = 0
    gained: bool = False
    short: bool = False

    @property
    def root(self) -> Branch:
        """The branch of the question itself, without a step."""
        return self.branches[0]

    def number(self, branch: Branch) -> None:
        """Gives a new branch the next id; its parent has one already."""
        branch.id = len(self.branches)
        self.branches.append(branch)

    def take_apart(self) -> None:
        """Cuts the links between its branches, so that they are freed now and not by a search for cycles later."""
        for branch in self.branches:
            branch.parent = None
            branch.children.clear()
        self.branches.clear()


def plant(question: Question, state: State) -> Growth:
    """A tree that holds its root only."""
    growth = Growth(question)
    growth.number(Branch(Node(id=0, parent=None, depth=0), state, None))
    return growth


Rule = Callable[[Branch], float]
"""Selection: how worthwhile a visit to a child is; the greatest is visited, the first of equals."""


def uct(branch: Branch, exploration: float) -> float:
    """Q + c·√(ln (N + O)_parent / (N + O)), with O the visits in flight (WU-UCT, arXiv 1810.11755).

    Infinite for a branch that nobody visited or is visiting; one that is only being visited takes its parent's Q.
    """
    parent, seen = branch.parent, branch.visits + branch.pending
    if seen == 0 or parent is None:
        return math.inf
    known = branch if branch.visits else parent
    mean = known.total / known.visits if known.visits else 0.0
    return mean + exploration * math.sqrt(math.log(max(1, parent.visits + parent.pending)) / seen)


def seed_of(seed: int, question_id: str, branch: Branch) -> int:
    """Depends on the steps that led to the branch and on how often it was sampled, never on node ids or timing."""
    path = "\0".join(step.text for step in branch.state.steps)
    text = f"{seed}\0{question_id}\0{branch.sampled}\0{path}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) >> 1


def select(growth: Growth, rule: Rule) -> Branch | None:
    """The branch to expand next: from the root, down the free child that `rule` prefers, to the first that is not full.

    None where everything is closed, or busy in this wave.
    """
    branch = growth.root
    while not (branch.closed or branch.busy):
        if not branch.full:
            return branch
        free = [child for child in branch.children if not (child.closed or child.busy)]
        if free:
            branch = max(free, key=rule)  # the first of equals
        elif branch.node.terminal:  # only where finished leaves are visited again
            return branch
        else:
            branch.busy = True
            branch = growth.root
    return None


def backup(branch: Branch | None, reward: float) -> None:
    """Adds a reward and a visit to `branch` and everything above it."""
    while branch is not None:
        branch.visits += 1
        branch.total += reward
        branch = branch.parent


def mark_pending(branch: Branch | None, change: int) -> None:
    """Counts a leaf as in flight (+1) or landed (-1) on the way from it to the root."""
    while branch is not None:
        branch.pending += change
        branch = branch.parent


def settle(branch: Branch | None) -> None:
    """Closes `branch` if it is full and all its children are closed, and so on upwards."""
    while branch is not None and branch.full and all(child.closed for child in branch.children):
        branch.closed = True
        branch = branch.parent


def finished(growth: Growth, status: str) -> Tree:
    """The tree as a record, with visits and mean values in its nodes."""
    nodes = tuple(map(_settled, growth.branches))
    return Tree(TREE_FORMAT, growth.question, status, growth.usage, nodes, growth.iterations)


def _settled(branch: Branch) -> Node:
    return replace(
        branch.node,
        id=branch.id,
        parent=branch.parent.id if branch.parent else None,
        visits=branch.visits,
        value=branch.total / branch.visits if branch.visits else None,
    )
