"""Which steps of a tree are right: what the world knows and no label may."""

from __future__ import annotations

from dataclasses import dataclass, replace

from preference.rewards import Estimate, Rewards
from steprag.experiments.tunnel.world import KIND_OF, NOTHING, RELATION_OF, RELATIONS, FactWorld
from steprag.tree import Node, Tree


@dataclass(frozen=True)
class HopsDone:
    """How far an episode is on a question's way: hops done, what was asked last, and by what words in vain."""

    hops: tuple[tuple[str, str], ...]
    done: int = 0
    asked: tuple[str, str] = ("", "")
    tried: frozenset[tuple[str, str]] = frozenset()

    @property
    def due(self) -> tuple[str, str] | None:
        """Person and relation of the next hop; None where all are done."""
        return self.hops[self.done] if self.done < len(self.hops) else None


def way_of(world: FactWorld, tree: Tree) -> HopsDone:
    """The way of a tree's question, from its start."""
    person, *relations = tree.question.question.split(" is ")[0].split()
    hops = []
    for relation in relations:
        hops.append((person, relation))
        person = world.fact(person, relation)[0]
    return HopsDone(tuple(hops))


def right_steps(world: FactWorld, tree: Tree) -> list[bool]:
    """For every node by id, whether its step is right where it was taken. The root counts as right.

    A query: it asks for the due hop, by the first word, or by the second where the first was tried in vain. Evidence:
    the passage that tells what was asked, or that none does. An answer: it is right and all hops are done.
    """
    ways, right = [way_of(world, tree)], [True]
    for node in tree.nodes[1:]:
        before = ways[node.parent or 0]
        after, good = (before, False) if node.failure else _judged(world, before, node, tree)
        ways.append(after)
        right.append(good)
    return right


def _judged(world: FactWorld, way: HopsDone, node: Node, tree: Tree) -> tuple[HopsDone, bool]:
    content = node.content or ""
    if node.action == "answer":
        return way, way.due is None and content in tree.question.golden_answers
    if node.action == "query":
        person, _, word = content.partition(" ")
        relation = RELATION_OF.get(word, "")
        tried = frozenset(told for who, told in way.tried if who == person)
        first, second = RELATIONS.get(relation, ("", ""))
        good = (person, relation) == way.due and word == (second if first in tried else first) and word not in tried
        return replace(way, asked=(person, word)), good
    person, word = way.asked
    relation = RELATION_OF.get(word, "")
    title, _, told = content.rpartition(" ")
    known = {passage.title: passage.text for passage in world.passages(person, word)} if relation else {}
    right_title = f"{person} {word} {KIND_OF.get(relation, '')}"
    good = title == right_title and told == known.get(title, NOTHING)
    if good and told == NOTHING:
        return replace(way, tried=way.tried | {way.asked}), True
    if good and (person, relation) == way.due:
        way = replace(way, done=way.done + 1)
    return way, good


def oracle(world: FactWorld, tree: Tree) -> Rewards:
    """1 for a right step and 0 for a wrong one; None for what the grammar refused."""
    right = right_steps(world, tree)
    return [
        None if node.failure or not node.action else Estimate(float(good), 0.0, "oracle")
        for node, good in zip(tree.nodes, right, strict=True)
    ]
