"""What an episode has met and kept by each step: contents, the golden answer, gold passages, the facts that an answer
needs. Labels that ask no model and play no rollout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from steprag.agent.grammar import Grammar
from steprag.agent.stack import live
from steprag.scores.gold import Gold, facts_of, gold_of, holds_golden, mentions, subject
from steprag.scores.metrics import guessable, normalise
from steprag.tree import Node, Tree, path_to
from steprag.types import Step


def keeping(grammar: Grammar) -> frozenset[str]:
    """The names of the actions that keep."""
    return frozenset(action.name for action in grammar.actions if action.keeps)


def retrieving(grammar: Grammar) -> frozenset[str]:
    """The names of the actions that search."""
    return frozenset(action.name for action in grammar.actions if action.retrieves)


def kept_contents(tree: Tree, grammar: Grammar) -> list[tuple[str, ...]]:
    """For every node by id, the contents kept by then, in order. What a later step took off the stack is not kept."""
    keeps = keeping(grammar)
    if grammar.shrinks:
        return [_on_stack(path_to(tree, node)[1:], keeps, grammar) for node in tree.nodes]
    kept: list[tuple[str, ...]] = []
    for node in tree.nodes:  # parents come before their children
        before = kept[node.parent] if node.parent is not None else ()
        kept.append((*before, node.content) if node.action in keeps and node.content else before)
    return kept


def _on_stack(path: list[Node], keeps: frozenset[str], grammar: Grammar) -> tuple[str, ...]:
    steps = tuple(Step(node.action or "", node.text, node.content or "") for node in path if node.failure is None)
    return tuple(steps[at].content for at in live(steps, grammar) if steps[at].action in keeps)


def golden_met(tree: Tree, grammar: Grammar) -> list[bool | None]:
    """For every node by id, whether the golden answer stands in what the step found or the episode has kept by then.

    A step that keeps (`Action.keeps`): a golden answer stands in the kept text so far. A step that retrieves: it stands
    there or in the passages found (`golden_seen`). None for all other steps, and everywhere on questions whose answer
    can be guessed (`guessable`), because words prove nothing there.
    """
    if guessable(tree.question.question, tree.question.golden_answers):
        return [None] * len(tree.nodes)
    keeps = keeping(grammar)
    seen = golden_seen(tree, grammar)
    met: list[bool | None] = []
    for node, kept, found in zip(tree.nodes, golden_kept(tree, grammar), seen, strict=True):
        kept_here = node.action in keeps and node.failure is None
        met.append(kept if kept_here else None if found is None else kept or found)
    return met


def golden_seen(tree: Tree, grammar: Grammar) -> list[bool | None]:
    """For every node by id, whether a golden answer stands in the passages that its search found; None for other steps.

    The search looked (`Node.golden_found`). In trees of before it did, the passages are read in the prompt of the step
    below; None where nothing was asked below.
    """
    golden = tree.question.golden_answers
    searches = retrieving(grammar)

    def seen(node: Node) -> bool | None:
        if node.action not in searches or node.golden_found is not None:
            return node.golden_found
        return None if node.messages is None else holds_golden(shown_below(tree, node), golden)

    return [seen(node) for node in tree.nodes]


def golden_kept(tree: Tree, grammar: Grammar) -> list[bool]:
    """For every node by id, whether a golden answer stands in what the episode has kept by then, word for word."""
    golden = tree.question.golden_answers
    return [any(holds_golden(text, golden) for text in contents) for contents in kept_contents(tree, grammar)]


def shown_below(tree: Tree, node: Node) -> str:
    """The prompt that the node's children saw, without the steps that the policy wrote."""
    text = "\n".join(message["content"] for message in node.messages or ())
    for step in path_to(tree, node)[1:]:
        text = text.replace(step.text, " ")
    return text


@dataclass(frozen=True)
class Seen:
    """What an episode has by a node. `found`: gold mark → title of the passages that its searches found; `kept`: the
    marks, of these, whose title the kept text mentions, which is a proxy, since trees hold no passage texts.
    """

    found: dict[str, str]
    kept: frozenset[str]


def gold_seen(tree: Tree, gold: Gold, grammar: Grammar) -> list[Seen]:
    """For every node by id, what the episode has of the gold passages by then."""
    keeps = keeping(grammar)
    contents = kept_contents(tree, grammar) if grammar.shrinks else None
    seen: list[Seen] = []
    for node in tree.nodes:  # parents come before their children
        before = seen[node.parent] if node.parent is not None else Seen({}, frozenset())
        found, kept = before.found, before.kept
        if fresh := {mark: subject(p.title) for p in node.passages if (mark := gold.matches(p)) is not None}:
            found = found | fresh
        if node.action in keeps and node.content and found:
            there = mentions(node.content, found.values())
            kept = kept | {mark for mark, told in zip(found, there, strict=True) if told}
        if contents is not None:  # what was kept may be gone again
            there = mentions(" ".join(contents[node.id]), found.values())
            kept = frozenset(mark for mark, told in zip(found, there, strict=True) if told)
        seen.append(Seen(found, kept))
    return seen


def gold_recall(tree: Tree, gold: Gold | None, grammar: Grammar) -> list[float | None]:
    """For every node by id, the share of the gold passages that the episode has by then; None for other steps.

    A step that retrieves counts what the searches so far have found, a step that keeps (`Action.keeps`) what the kept
    text so far mentions. None everywhere without gold.
    """
    if gold is None:
        return [None] * len(tree.nodes)
    searches = retrieving(grammar)
    keeps = keeping(grammar)
    recall: list[float | None] = []
    for node, seen in zip(tree.nodes, gold_seen(tree, gold, grammar), strict=True):
        marks = seen.kept if node.action in keeps and node.content else seen.found if node.action in searches else None
        recall.append(None if marks is None else gold.share(len(marks)))
    return recall


def supported(tree: Tree, grammar: Grammar) -> list[bool | None]:
    """For every node by id, whether the episode has found and kept by then what the answer needs; None: nobody knows.

    1. Where `metadata.facts` lists them (`steprag.scores.gold.Fact`): each fact's passage was found, its words kept.
    2. Else, on questions that cannot be guessed: a golden answer stands in the kept text.
    3. Else, where gold passages are marked (a comparison's two): each was found, and the kept text names it.
    """
    question = tree.question
    if facts := facts_of(question):
        return [all(fact.held(ids, text) for fact in facts) for ids, text in found_and_kept(tree, grammar)]
    if not guessable(question.question, question.golden_answers):
        return list(golden_kept(tree, grammar))
    gold = gold_of(question)
    if gold is None:
        return [None] * len(tree.nodes)
    return [gold.share(len(seen.kept)) == 1.0 for seen in gold_seen(tree, gold, grammar)]


def found_and_kept(tree: Tree, grammar: Grammar) -> list[tuple[frozenset[str], str]]:
    """For every node by id, the ids of the passages found by then, and the normalised text kept by then, a blank on
    either side.
    """
    found: list[frozenset[str]] = []
    for node in tree.nodes:  # parents come before their children
        before = found[node.parent] if node.parent is not None else frozenset[str]()
        found.append(before | {passage.id for passage in node.passages})
    kept = [f" {normalise(' '.join(contents))} " for contents in kept_contents(tree, grammar)]
    return list(zip(found, kept, strict=True))


def grounded(tree: Tree, grammar: Grammar) -> Tree:
    """The tree without its lucky answers: one that is right, or partly, counts only where `supported` says so.

    A lucky answer is no wrong one: it has no score. Where nobody knows, answers count as they did.
    """
    known = supported(tree, grammar)
    nodes = tuple(
        replace(node, prediction_f1=None) if node.prediction_f1 and known[node.parent or 0] is False else node
        for node in tree.nodes
    )
    return replace(tree, nodes=nodes)


def solved(tree: Tree) -> bool:
    """Whether an answer of the tree is right."""
    return any(node.prediction_f1 == 1.0 for node in tree.nodes)
