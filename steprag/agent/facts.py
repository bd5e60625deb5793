"""`Facts`: what the episodes of a tree have found, met and kept by each step. Made once a tree, before any label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from steprag.agent.grammar import Grammar
from steprag.agent.stack import live
from steprag.scores.gold import Gold, facts_of, gold_of, holds_golden, mentions, subject
from steprag.scores.metrics import guessable, normalise
from steprag.tree import Node, Tree, path_to
from steprag.types import Step

Met = Sequence[float | None]
"""By node id, what a step met is worth (`steprag.agent.chained.LEVELS`), None where it is unknown."""
Kept = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Seen:
    """What an episode has by a node. `found`: gold mark → title of the passages that its searches found; `kept`: the
    marks, of these, whose title the kept text mentions, which is a proxy, since trees hold no passage texts.
    """

    found: dict[str, str]
    kept: frozenset[str]


@dataclass(frozen=True)
class Facts:
    """A tree, its grammar, and by node id what its episodes have by then.

    `gold`: the passages that the question marks, None where it marks none. `guessable`: whether the golden answer can
    be guessed, so that its words prove nothing. `kept`: the contents kept, in order; what a later step took off the
    stack is not among them. `golden_kept`: whether a golden answer stands in these, word for word. `golden_seen`:
    whether one stands in the passages that the step's search found; None for other steps, and where nobody knows.
    `seen`: what the episode has of `gold`; empty without marks. `met`: what chained match says, None where the label
    does not ask it.
    """

    tree: Tree
    grammar: Grammar
    gold: Gold | None
    guessable: bool
    kept: Kept
    golden_kept: tuple[bool, ...]
    golden_seen: tuple[bool | None, ...]
    seen: tuple[Seen, ...]
    met: Met | None = None


def facts_about(tree: Tree, grammar: Grammar, *, grounded: bool = False) -> Facts:
    """The facts of a tree. `grammar` is the one that it was made with; `grounded`: `without_luck`.

    Raises ConfigError where the question's marks are no lists.
    """
    question, golden = tree.question, tree.question.golden_answers
    gold, kept = gold_of(question), _kept(tree, grammar)
    holds = {text: holds_golden(text, golden) for contents in kept for text in contents}
    golden_kept = tuple(any(holds[text] for text in contents) for contents in kept)
    seen = () if gold is None else _seen(tree, gold, kept, grammar)
    lucky = guessable(question.question, golden)
    facts = Facts(tree, grammar, gold, lucky, kept, golden_kept, _golden_seen(tree, grammar), seen)
    return without_luck(facts) if grounded else facts


def keeping(grammar: Grammar) -> frozenset[str]:
    """The names of the actions that keep."""
    return frozenset(action.name for action in grammar.actions if action.keeps)


def retrieving(grammar: Grammar) -> frozenset[str]:
    """The names of the actions that search."""
    return frozenset(action.name for action in grammar.actions if action.retrieves)


def _kept(tree: Tree, grammar: Grammar) -> Kept:
    keeps = keeping(grammar)
    if grammar.shrinks:
        return tuple(_on_stack(path_to(tree, node)[1:], keeps, grammar) for node in tree.nodes)
    kept: list[tuple[str, ...]] = []
    for node in tree.nodes:  # parents come before their children
        before = kept[node.parent] if node.parent is not None else ()
        kept.append((*before, node.content) if node.action in keeps and node.content else before)
    return tuple(kept)


def _on_stack(path: list[Node], keeps: frozenset[str], grammar: Grammar) -> tuple[str, ...]:
    steps = tuple(Step(node.action or "", node.text, node.content or "") for node in path if node.failure is None)
    return tuple(steps[at].content for at in live(steps, grammar) if steps[at].action in keeps)


def _golden_seen(tree: Tree, grammar: Grammar) -> tuple[bool | None, ...]:
    """The search looked (`Node.golden_found`). In older trees the passages are read in the prompt of the step below;
    None where nothing was asked below.
    """
    searches, golden = retrieving(grammar), tree.question.golden_answers

    def seen(node: Node) -> bool | None:
        if node.action not in searches or node.golden_found is not None:
            return node.golden_found
        return None if node.messages is None else holds_golden(shown_below(tree, node), golden)

    return tuple(map(seen, tree.nodes))


def shown_below(tree: Tree, node: Node) -> str:
    """The prompt that the node's children saw, without the steps that the policy wrote."""
    text = "\n".join(message["content"] for message in node.messages or ())
    for step in path_to(tree, node)[1:]:
        text = text.replace(step.text, " ")
    return text


def _seen(tree: Tree, gold: Gold, contents: Kept, grammar: Grammar) -> tuple[Seen, ...]:
    keeps = keeping(grammar)
    seen: list[Seen] = []
    for node in tree.nodes:  # parents come before their children
        before = seen[node.parent] if node.parent is not None else Seen({}, frozenset())
        found, kept = before.found, before.kept
        if fresh := {mark: subject(p.title) for p in node.passages if (mark := gold.matches(p)) is not None}:
            found = found | fresh
        if grammar.shrinks:  # what was kept may be gone again
            kept = _mentioned(" ".join(contents[node.id]), found)
        elif node.action in keeps and node.content and found:
            kept = kept | _mentioned(node.content, found)
        seen.append(Seen(found, kept))
    return tuple(seen)


def _mentioned(text: str, found: dict[str, str]) -> frozenset[str]:
    return frozenset(mark for mark, there in zip(found, mentions(text, found.values()), strict=True) if there)


def gold_shares(facts: Facts) -> list[float | None]:
    """For every node by id, the share of the gold passages that the episode has by then; None for steps that neither
    retrieve nor keep, and everywhere without gold.

    A step that retrieves counts what the searches so far have found, a step that keeps (`Action.keeps`) what the kept
    text so far mentions.
    """
    if facts.gold is None:
        return [None] * len(facts.tree.nodes)
    searches, keeps = retrieving(facts.grammar), keeping(facts.grammar)
    shares: list[float | None] = []
    for node, seen in zip(facts.tree.nodes, facts.seen, strict=True):
        marks = seen.kept if node.action in keeps and node.content else seen.found if node.action in searches else None
        shares.append(None if marks is None else facts.gold.share(len(marks)))
    return shares


def golden_met(facts: Facts) -> list[bool | None]:
    """For every node by id, whether the golden answer stands in what the step found or the episode has kept by then.

    A step that keeps (`Action.keeps`): a golden answer stands in the kept text so far. A step that retrieves: it stands
    there or in the passages found. None for all other steps, and everywhere where the answer can be guessed.
    """
    if facts.guessable:
        return [None] * len(facts.tree.nodes)
    keeps = keeping(facts.grammar)
    met: list[bool | None] = []
    for node, kept, found in zip(facts.tree.nodes, facts.golden_kept, facts.golden_seen, strict=True):
        kept_here = node.action in keeps and node.failure is None
        met.append(kept if kept_here else None if found is None else kept or found)
    return met


def supported(facts: Facts) -> list[bool | None]:
    """For every node by id, whether the episode has found and kept by then what the answer needs; None: nobody knows.

    1. Where `metadata.facts` lists them (`steprag.scores.gold.Fact`): each fact's passage was found, its words kept.
    2. Else, on questions that cannot be guessed: a golden answer stands in the kept text.
    3. Else, where gold passages are marked (a comparison's two): each was found, and the kept text names it.

    Raises ConfigError where `metadata.facts` cannot be read.
    """
    if needed := facts_of(facts.tree.question):
        return [all(fact.held(ids, text) for fact in needed) for ids, text in found_and_kept(facts)]
    if not facts.guessable:
        return [*facts.golden_kept]
    if facts.gold is None:
        return [None] * len(facts.tree.nodes)
    return [facts.gold.share(len(seen.kept)) == 1.0 for seen in facts.seen]


def found_and_kept(facts: Facts) -> list[tuple[frozenset[str], str]]:
    """For every node by id, the ids of the passages found by then, and the normalised text kept by then, a blank on
    either side.
    """
    found: list[frozenset[str]] = []
    for node in facts.tree.nodes:  # parents come before their children
        before = found[node.parent] if node.parent is not None else frozenset[str]()
        found.append(before | {passage.id for passage in node.passages})
    kept = [f" {normalise(' '.join(contents))} " for contents in facts.kept]
    return list(zip(found, kept, strict=True))


def without_luck(facts: Facts) -> Facts:
    """The same without lucky answers: one that is right, or partly, has a score only where `supported` says so.

    A lucky answer is no wrong one. Where nobody knows, answers count as they did.
    """
    known = supported(facts)
    nodes = tuple(
        replace(node, prediction_f1=None) if node.prediction_f1 and known[node.parent or 0] is False else node
        for node in facts.tree.nodes
    )
    return replace(facts, tree=replace(facts.tree, nodes=nodes))


def solved(tree: Tree) -> bool:
    """Whether an answer of the tree is right."""
    return any(node.prediction_f1 == 1.0 for node in tree.nodes)
