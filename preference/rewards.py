"""Rewards of a finished tree: for every node, how good it was to go there. Nothing is written into the tree.

A reward is a function of a tree and a `LabelConfig`, listed by name in `REWARDS`; those that read what was met or kept
also take the grammar, and so does one of the user's own (`own`). Rewards of episodes are labels too (`of_episodes`).
It gives an `Estimate` for every node by id, None where it says nothing (a refused completion is not a wrong answer).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from preference.chained import Met, chained_match
from preference.config import LabelConfig
from preference.kept import (
    gold_recall,
    gold_seen,
    golden_kept,
    golden_met,
    golden_seen,
    grounded,
    keeping,
    retrieving,
    supported,
)
from steprag.agent.belief import CONVINCED, FLOOR, floored, probability
from steprag.agent.grammar import Grammar
from steprag.agent.rewards import OF_ANSWERS, OF_TREES, Played, takes, value_of
from steprag.errors import ConfigError, quoted
from steprag.extras import function_at
from steprag.scores.gold import gold_of
from steprag.scores.metrics import exact_match, f1_with_articles, guessable
from steprag.tree import Belief, Node, Tree, children_of, discounted, path_to
from steprag.types import Episode, Passage, State, Step, Usage

NATS = 20.0
"""Nats that count as 1: a margin of 0.1 is 2 nats, which is seven times as likely."""
SURE = -FLOOR / NATS
"""What a belief without doubt is worth."""
GOLD = 0.8
"""What all marked passages are worth on a question that can be guessed."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a step was worth. `error` is the standard error: 0 where the value is exact, None where nothing tells.

    `basis` names the rewards that went in; values of different bases are not compared.
    """

    value: float
    error: float | None
    basis: str


Rewards = list[Estimate | None]


def rewards(tree: Tree, config: LabelConfig, grammar: Grammar, met: Met | None = None) -> Rewards:
    """The reward that `config` names, for every node by id. `grammar` is the one that the tree was made with.

    `met`: what chained match says of the tree (`chained_met`); by default it reads the tree alone.
    """
    chosen = settled(tree, config)
    met = chained_met(tree, chosen, grammar) if met is None else met
    if chosen.name == "mixed":
        return mixed(tree, config, grammar, met)
    if {"evidence", "gold"} & {config.name, chosen.name}:
        tree = grounded(tree, grammar)
    worth = _named(chosen.name, tree, chosen, grammar, met)
    silent = config.name == "evidence" and not any(worth)  # nothing is marked, and the answer can be guessed
    return _with_answers(worth, outcomes(tree, config)) if silent or chosen.name == "gold" else worth


def settled(tree: Tree, config: LabelConfig) -> LabelConfig:
    """The label of a tree: for `evidence`, `gold` where the question marks passages, else `cover`, chained."""
    if config.name != "evidence":
        return config
    marked = gold_of(tree.question) is not None
    return config.model_copy(update={"name": "gold" if marked else "cover", "chained": not marked})


def chained_met(tree: Tree, config: LabelConfig, grammar: Grammar, found: Sequence[Passage] = ()) -> Met | None:
    """What chained match says of a tree (`chained_match`); None where its label is not chained."""
    return chained_match(tree, grammar, found) if settled(tree, config).chained else None


def _named(name: str, tree: Tree, config: LabelConfig, grammar: Grammar, met: Met | None) -> Rewards:
    if name == "gold":
        return gold(tree, grammar)
    if name == "gain":
        return gain(tree, grammar)
    if ":" in name and takes(function_at(name, "label.name"), 2):
        return own(name, tree, grammar)
    if ":" in name or name in OF_TREES:
        return of_episodes(name, tree, config.of, grammar)
    return cover(tree, config, grammar, met) if name == "cover" else REWARDS[name](tree, config)


def _with_answers(worth: Rewards, answers: list[float | None]) -> Rewards:
    """`worth` with the outcomes of answers in their places, which are compared with each other alone."""
    told = _estimates(answers, 0.0, "answer")
    return [answer or one for one, answer in zip(worth, told, strict=True)]


def _estimates(values: list[float | None], error: float | None, basis: str) -> Rewards:
    return [None if value is None else Estimate(value, error, basis) for value in values]


def outcomes(tree: Tree, config: LabelConfig) -> list[float | None]:
    """For every answer the search scored, metric × alpha^steps; None for every other node.

    The metric `f1` is the one that the tree holds; the others are computed from the answer's text.
    """
    metric = {"em": exact_match, "f1_with_articles": f1_with_articles}.get(config.metric)
    worth: list[float | None] = []
    for node in tree.nodes:
        score = node.prediction_f1
        if score is not None and metric is not None:
            score = metric(node.content, tree.question.golden_answers)
        worth.append(None if score is None else discounted(score, node.depth, config.alpha))
    return worth


def spre(tree: Tree, config: LabelConfig) -> Rewards:
    """SPRE of arXiv 2505.14069: the mean over the answers at or below a node of F1 × alpha^steps, weighted by visits.

    Played episodes stay in the tree, so every answer below is one rollout.
    """
    return mean_below(tree, outcomes(tree, config), "spre")


def summed_below(tree: Tree, own: Sequence[float]) -> list[float]:
    """For every node by id, the sum of the values at or below it."""
    sums = [0.0] * len(own)
    for node in reversed(tree.nodes):  # children come after their parents, so each is complete when it is reached
        sums[node.id] += own[node.id]
        if node.parent is not None:
            sums[node.parent] += sums[node.id]
    return sums


def mean_below(tree: Tree, leaves: list[float | None], basis: str) -> Rewards:
    """The mean of the leaf values at or below every node, each weighted by its node's visits (at least one).

    A single leaf's own value is exact. Else the standard error is that of a mean of so many rollouts, their variance
    pooled with the tree's as if that were one rollout more: one or two alone do not tell how much rollouts vary.
    """
    if all(value is None for value in leaves):
        return [None] * len(tree.nodes)
    rated = [
        (0, 0.0) if value is None else (max(node.visits, 1), value)
        for node, value in zip(tree.nodes, leaves, strict=True)
    ]
    weight = summed_below(tree, [visits for visits, _ in rated])
    squares = summed_below(tree, [visits * visits for visits, _ in rated])
    total = summed_below(tree, [visits * value for visits, value in rated])
    total_squares = summed_below(tree, [visits * value * value for visits, value in rated])
    spread = _spread(weight[0], squares[0], total[0], total_squares[0])
    found: Rewards = []
    for node in tree.nodes:
        w = weight[node.id]
        if not w:
            found.append(None)
            continue
        mean = total[node.id] / w
        if leaves[node.id] is not None:
            error: float | None = 0.0
        elif spread is None:
            error = None
        else:
            rollouts = w * w / squares[node.id]
            within = max(0.0, total_squares[node.id] / w - mean * mean) * rollouts
            error = math.sqrt(within + spread) / rollouts
        found.append(Estimate(mean, error, basis))
    return found


def _spread(weight: float, squares: float, total: float, total_squares: float) -> float | None:
    """The unbiased variance of all leaf values of a tree; None with fewer than two."""
    rollouts = weight * weight / squares if squares else 0.0
    if rollouts <= 1:
        return None
    mean = total / weight
    return max(0.0, total_squares / weight - mean * mean) * rollouts / (rollouts - 1)


def reasonrag(tree: Tree, config: LabelConfig) -> Rewards:
    """The published pair builder's reward: leaves as `outcomes`, inner nodes the mean of their rewarded children, each
    weighted by its visits.

    Unlike `spre` a child's weight counts every visit, also those that ended below it without an answer. Sums run in the
    order of the children, so that the values are the builder's to the last bit. It has no standard error.
    """
    children, leaves = children_of(tree), outcomes(tree, config)
    values: list[float | None] = [None] * len(tree.nodes)
    for node in reversed(tree.nodes):
        rated = [(value, child.visits) for child in children[node.id] if (value := values[child.id]) is not None]
        visits = sum(count for _, count in rated)
        if not children[node.id]:
            values[node.id] = leaves[node.id]
        elif visits:
            values[node.id] = sum(value * count for value, count in rated) / visits
    return _estimates(values, None, "reasonrag")


def best_leaf(tree: Tree, config: LabelConfig) -> Rewards:
    """The best answer at or below a node, F1 × alpha^steps: what the step can lead to. It has no standard error."""
    best = outcomes(tree, config)
    for node in reversed(tree.nodes):
        value = best[node.id]
        if value is not None and node.parent is not None:
            best[node.parent] = max(value, best[node.parent] or 0.0)
    return _estimates(best, None, "best_leaf")


def first_answer(tree: Tree, config: LabelConfig) -> Rewards:
    """What the first answer found at or below a node was worth: credit from one whole episode, as without a search.

    Siblings of different value are then where a right episode parts from a wrong one. It has no standard error.
    """
    leaves = outcomes(tree, config)
    first = [None if value is None else node.id for node, value in zip(tree.nodes, leaves, strict=True)]
    for node in reversed(tree.nodes):
        found = first[node.id]
        if found is not None and node.parent is not None:
            first[node.parent] = min(found, first[node.parent] or found)
    values = [None if found is None else leaves[found] for found in first]
    return _estimates(values, None, "first_answer")


def judge(tree: Tree, config: LabelConfig) -> Rewards:
    """The judge's score of the step, 0 to 1; where only steps below were judged, their mean, as in `spre`."""
    del config
    scores = [None if node.judge is None else node.judge.get("score") for node in tree.nodes]
    return [
        below if score is None else Estimate(score, None, "judge")
        for score, below in zip(scores, mean_below(tree, scores, "judge"), strict=True)
    ]


def gold(tree: Tree, grammar: Grammar) -> Rewards:
    """Gold-evidence recall of the steps that search or keep (`preference.kept.gold_recall`)."""
    return _estimates(gold_recall(tree, gold_of(tree.question), grammar), 0.0, "gold")


def cover(tree: Tree, config: LabelConfig, grammar: Grammar, met: Met | None = None) -> Rewards:
    """Whether the golden answer was met, 1 or 0, and for answers the outcome; × alpha^steps. `met`: what
    `chained_match` says instead, where names that lead to it count too; by default `golden_met`.

    None everywhere on questions that can be guessed from their own words.
    """
    met = golden_met(tree, grammar) if met is None else met
    values = [None if one is None else discounted(float(one), node.depth, config.alpha)
              for node, one in zip(tree.nodes, met, strict=True)]  # fmt: skip
    if any(value is not None for value in values):
        answers = outcomes(tree, config)
        values = [answer if value is None else value for value, answer in zip(values, answers, strict=True)]
    return _estimates(values, 0.0, "cover")


def gain(tree: Tree, grammar: Grammar) -> Rewards:
    """What a step adds to the policy's belief in the golden answer (`steprag.scores.gain`), 0 to 1: what every step is
    worth by the belief after it; None where that says nothing. Not discounted: siblings are as deep as each other.

    A step that goes on: (nats above the floor) / `NATS`, 0 to `SURE`. An answer ends the episode: wrong, it is worth
    the belief it was given at, so that a query which adds to it is better; right, it is worth 1, or, partly right, as
    much of the way to 1. A right answer at a state that does not believe in it (`CONVINCED`) is luck and not compared.

    A search after which nobody asked (`search.score_found` off) is worth `SURE` where it found the golden answer, else
    the belief before it; None where the golden answer was kept before it, for then it has nothing to find.

    On questions that can be guessed belief tells nothing. There the labels go by the marked passages (`_by_gold`): find
    them, keep them, and search on rather than answer before the facts are there.

    Raises ConfigError where the tree has no beliefs.
    """
    if guessable(tree.question.question, tree.question.golden_answers):
        return _estimates(_by_gold(tree, grammar), 0.0, "gain")
    if all(node.belief is None for node in tree.nodes):
        raise ConfigError(
            f"the tree of question {quoted(tree.question.id)} has no beliefs; "
            "add them: steprag trees belief --trees RUN --out RUN2"
        )
    seen, kept = golden_seen(tree, grammar), golden_kept(tree, grammar)

    def worth(node: Node) -> float | None:
        if node.failure is not None:
            return None
        if node.belief is not None:
            return _height(node.belief)
        before, found = tree.nodes[node.parent or 0].belief, seen[node.id]
        if before is None:
            return None
        if node.terminal:
            return _answered(node, before)
        if kept[node.parent or 0] or found is None:
            return None
        return SURE if found else _height(before)

    return _estimates([worth(node) for node in tree.nodes], 0.0, "gain")


def _answered(node: Node, before: Belief) -> float | None:
    if node.prediction_f1 is None or (node.prediction_f1 and probability(before) < CONVINCED):
        return None
    return _height(before) + node.prediction_f1 * (1 - _height(before))


def _height(belief: Belief) -> float:
    return (floored(belief) - FLOOR) / NATS


def _by_gold(tree: Tree, grammar: Grammar) -> list[float | None]:
    """On questions that can be guessed: shares of the marked passages, 0 to `GOLD`; None everywhere without marks.

    A search: found by then. A step that keeps: named by then. An answer before the facts are there (`supported`): found
    by then, so that a query which finds one more is better. An answer after that: `GOLD`, or 1 where it is right.
    """
    gold = gold_of(tree.question)
    if gold is None:
        return [None] * len(tree.nodes)
    seen, known = gold_seen(tree, gold, grammar), supported(tree, grammar)
    keeps = keeping(grammar)
    values: list[float | None] = []
    for node, here in zip(tree.nodes, seen, strict=True):
        if node.failure is not None or node.parent is None:
            values.append(None)
        elif node.terminal and known[node.parent]:
            values.append(None if node.prediction_f1 is None else GOLD + node.prediction_f1 * (1 - GOLD))
        else:
            values.append(GOLD * gold.share(len(here.kept if node.action in keeps else here.found)))
    return values


def own(place: str, tree: Tree, grammar: Grammar) -> Rewards:
    """What the user's function `module:function` says, of a tree and its grammar. Its code runs here.

    Raises ConfigError where it cannot be imported, or returns anything but an Estimate or None for every node by id.
    """
    told = function_at(place, "label.name")(tree, grammar)
    nodes = len(tree.nodes)
    if not isinstance(told, list) or len(told) != nodes:
        what = f"{len(told)} values" if isinstance(told, list) else f"a {type(told).__name__}"
        raise ConfigError(f"label.name: {place} returned {what} for a tree of {nodes} nodes; return a list with a "
                          "steprag.Estimate or None for each")  # fmt: skip
    for number, one in enumerate(told):
        if not (one is None or (isinstance(one, Estimate) and math.isfinite(one.value))):
            raise ConfigError(f"label.name: {place} says {quoted(one)} of node {number}; return a steprag.Estimate of a"
                              " finite value, or None")  # fmt: skip
    return told


def of_episodes(name: str, tree: Tree, of: str, grammar: Grammar) -> Rewards:
    """A reward of episodes (`steprag.agent.rewards`) as a label of steps, not discounted.

    "step": of the episode up to the step. "outcome": the mean, as in `spre`, over the episodes that end at or below it.
    A reward of answers says nothing where there is none.
    """

    def worth(node: Node) -> float | None:
        played = episode_at(tree, node, grammar)
        silent = (name in OF_ANSWERS and played.episode.prediction is None) or (of == "outcome" and not node.terminal)
        return None if silent or node.parent is None else value_of(name, played, "label.name")

    values = [worth(node) for node in tree.nodes]
    return _estimates(values, 0.0, name) if of == "step" else mean_below(tree, values, name)


def episode_at(tree: Tree, node: Node, grammar: Grammar) -> Played:
    """The episode from the question to a node, as far as a tree keeps it: passages without texts, no count of tokens,
    nothing of a judge.
    """
    path = path_to(tree, node)
    steps = tuple(Step(one.action, one.text, one.content or "") for one in path if one.action and one.failure is None)
    searches = retrieving(grammar)
    found = tuple(tuple(Passage(each.id, each.title, "", each.score) for each in one.passages)
                  for one in path if one.passages or (one.action in searches and one.failure is None))  # fmt: skip
    finish = node.failure or ("answer" if node.terminal else "unfinished")
    reasoned = sum(one.reasoning or 0 for one in path)
    refused = node.text if node.failure else None
    state = State(tree.question.question, steps)
    return Played(tree.question, Episode(state, finish, Usage(), found, refused, reasoned), grammar, tokens=0)


def mixed(tree: Tree, config: LabelConfig, grammar: Grammar, met: Met | None = None) -> Rewards:
    """The weighted mean (`config.mix`) of those rewards that a node has; `basis` names them.

    The parts are taken as independent for the standard error; a part without one adds none.
    """
    parts = {name: _named(name, tree, config, grammar, met) for name in sorted(config.mix)}
    return [_mean({name: part[node.id] for name, part in parts.items()}, config.mix) for node in tree.nodes]


def _mean(parts: dict[str, Estimate | None], weights: Mapping[Any, float]) -> Estimate | None:
    there = {name: part for name, part in parts.items() if part is not None}
    whole = sum(weights[name] for name in there)
    if not whole:
        return None
    value = sum(weights[name] * part.value for name, part in there.items()) / whole
    errors = [weights[name] * part.error / whole for name, part in there.items() if part.error is not None]
    return Estimate(value, math.hypot(*errors) if errors else None, "+".join(there))


REWARDS: dict[str, Callable[[Tree, LabelConfig], Rewards]] = {
    "spre": spre,
    "best_leaf": best_leaf,
    "first_answer": first_answer,
    "judge": judge,
    "reasonrag": reasonrag,
}
