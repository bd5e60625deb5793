"""A tree while it grows: nodes that refer to one another, numbered once their wave is over."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from steprag.agent.environment import Environment
from steprag.tree import TREE_FORMAT, Node, Tree
from steprag.types import Question, State, Usage


@dataclass(eq=False)
class SearchNode:
    """A node while its tree grows.

    `record` holds what is known when it is made; `finished` adds the rest (records are copied to be changed). `id`: its
    place in the tree, -1 until its wave is over. `visits` counts the rewards backed up through it, `total` sums them;
    `pending` counts the simulations under way below it (WU-UCT). `full`: it has been asked for all its children.
    `closed`: nothing below is left to explore. `busy`: not to be selected in this wave.
    """

    record: Node
    state: State
    parent: SearchNode | None
    id: int = -1
    children: list[SearchNode] = field(default_factory=list)
    visits: int = 0
    total: float = 0.0
    pending: int = 0
    sampled: int = 0
    full: bool = False
    closed: bool = False
    busy: bool = False

    def with_facts(self, **facts: Any) -> Node:
        """Its record with these fields set; `replace` takes four times as long."""
        return Node(**{**vars(self.record), **facts})

    def mark_pending(self, change: int) -> None:
        """Counts a simulation as begun (+1) or backed up (-1) on the way from its leaf, this node, to the root."""
        for each in upwards(self):
            each.pending += change

    def close_explored(self) -> None:
        """Closes it if it is full and all its children are closed, and so on upwards."""
        for each in upwards(self):
            if not (each.full and all(child.closed for child in each.children)):
                return
            each.closed = True


@dataclass(eq=False)
class SearchTree:
    """A tree in progress. `nodes[i].id == i`; `right` and `wrong` count the answers so far; `gained`: a step has raised
    the policy's belief in the golden answer; `short`: a replay's journal had fewer calls than the search wanted.
    """

    question: Question
    grammar: str
    nodes: list[SearchNode] = field(default_factory=list)
    usage: Usage = Usage()
    iterations: int = 0
    right: int = 0
    wrong: int = 0
    gained: bool = False
    short: bool = False

    @property
    def root(self) -> SearchNode:
        """The node of the question itself, without a step."""
        return self.nodes[0]

    def number(self, node: SearchNode) -> None:
        """Gives a new node the next id; its parent has one already."""
        node.id = len(self.nodes)
        self.nodes.append(node)

    def take_apart(self) -> None:
        """Cuts the links between its nodes, so that they are freed now and not by a search for cycles later."""
        for node in self.nodes:
            node.parent = None
            node.children.clear()
        self.nodes.clear()


@dataclass(eq=False)
class Simulation:
    """One leaf being explored. `created` in order of sampling; `valued`: nodes whose reward will be backed up."""

    leaf: SearchNode
    created: list[SearchNode] = field(default_factory=list)
    valued: list[tuple[SearchNode, float]] = field(default_factory=list)
    usage: Usage = Usage()


def root_only(question: Question, environment: Environment) -> SearchTree:
    """A tree that holds its root only."""
    tree = SearchTree(question, environment.profile.grammar.name)
    tree.number(SearchNode(Node(id=0, parent=None, depth=0), environment.start(question.question), None))
    return tree


Rule = Callable[[SearchNode], float]
"""Selection: how worthwhile a visit to a child is; the greatest is visited, the first of equals."""


def uct(node: SearchNode, exploration: float) -> float:
    """Q + c·√(ln (N + O)_parent / (N + O)), with O the visits under way (WU-UCT, arXiv 1810.11755).

    Infinite for a node that nobody visited or is visiting; one that is only being visited takes its parent's Q.
    """
    parent, seen = node.parent, node.visits + node.pending
    if seen == 0 or parent is None:
        return math.inf
    known = node if node.visits else parent
    mean = known.total / known.visits if known.visits else 0.0
    return mean + exploration * math.sqrt(math.log(max(1, parent.visits + parent.pending)) / seen)


def seed_of(seed: int, question_id: str, node: SearchNode) -> int:
    """Depends on the steps that led to the node and on how often it was sampled, never on node ids or timing."""
    path = "\0".join(step.text for step in node.state.steps)
    text = f"{seed}\0{question_id}\0{node.sampled}\0{path}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) >> 1


def upwards(node: SearchNode | None) -> Iterator[SearchNode]:
    """The node and all above it, up to the root."""
    while node is not None:
        yield node
        node = node.parent


def add_reward(node: SearchNode, reward: float) -> None:
    """Adds a reward and a visit to `node` and everything above it."""
    for each in upwards(node):
        each.visits += 1
        each.total += reward


def finished(tree: SearchTree, status: str) -> Tree:
    """The tree as a record, with visits and mean values in its nodes."""
    nodes = []
    for node in tree.nodes:
        parent, value = node.parent.id if node.parent else None, node.total / node.visits if node.visits else None
        nodes.append(node.with_facts(id=node.id, parent=parent, visits=node.visits, value=value))
    return Tree(TREE_FORMAT, tree.question, status, tree.usage, tuple(nodes), tree.iterations, grammar=tree.grammar)
