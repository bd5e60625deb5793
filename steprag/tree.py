"""Questions that one asks of a finished tree. A tree is a flat list of nodes; children are found by `parent`."""

from __future__ import annotations

from steprag.types import Message, Node, Tree


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
