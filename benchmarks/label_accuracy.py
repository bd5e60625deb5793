"""How many pairs a reward makes of Atlas' trees, and how many of them are right by the gold facts.

    python benchmarks/label_accuracy.py [--trees FILE …] [--rewards spre cover …] [--share 0.5] [--one_action]
                                        [--index INDEX] [--json]

Nothing is searched and no model is asked; `gain` needs trees with beliefs, as the shipped ones have. Pairs are made by
the rules of `steprag pairs` (margin 0.1, more than a standard error, no discount, no cap), with the filters of the
proof (`repeating`, `unread`). Each pair is then judged by the gold chain of the question:

- two queries: the better one finds a gold passage more that the episode had not seen;
- two evidence steps: the better one adds a gold fact more, from a passage that was shown;
- a query and an answer: the query, where the facts for the answer are not held yet; else the answer, if it is right;
- two answers are not judged: their truth is what the rewards read.

Where neither is better the pair is undecided. The facts are those of the questions' metadata. Questions whose answer
can be guessed from their own words are counted apart. Some rewards read what the truth is made of: `cover` the golden
answer, `gold` the marked passages, `+grounded` the facts, and `gain` both of these on questions that can be guessed.
So the column "outcomes below" asks another witness: of query and evidence pairs, where the answers below the chosen
step were right more often than those below the rejected one, and where less often.

`+chained` lets the names count too that lead to the golden answer; with `--index`, also those of a search for question
and answer. `--one_action` makes pairs of like steps alone, as `steprag pairs` does. `--share` keeps of each tree what
the search had when it had made that share of its calls: what labels a shorter search would have given. Intervals:
95 %, percentile bootstrap over trees.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from indexes import open_retriever
from preference.build import read_trees
from preference.chained import AnswerSearches
from preference.config import FilterConfig, LabelConfig, PairsConfig
from preference.filters import content_reader, step_checks
from preference.kept import grounded, solved
from preference.pairs import build_pairs
from preference.rewards import chained_met, rewards, spre
from steprag import atlas
from steprag.agent.grammars import TRANSCRIPT
from steprag.scores.gold import Fact, facts_of
from steprag.scores.metrics import exact_match, guessable, normalise
from steprag.tree import Tree, children_of
from steprag.types import Passage

ACTIONS = ("query", "evidence", "query or answer")


@dataclass(frozen=True)
class Known:
    """What the episode has at a node: passages seen, facts held (by place), the passages of the last search."""

    seen: frozenset[str] = frozenset()
    facts: frozenset[int] = frozenset()
    shown: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Row:
    """The pairs of one reward: `right` of `decided`, by what the steps do.

    `calls`: of the search, for one right query or evidence pair; `scores`: requests for beliefs beside them, in
    all. `covered`: the share of the nodes with two children or more that gave a pair. Of query and evidence pairs:
    `unsolved` are those right and wrong of trees without a right answer, and how many such trees gave one; `below`
    those that the outcomes below speak for and against.
    """

    reward: str
    pairs: int
    decided: dict[str, int]
    right: dict[str, int]
    interval: dict[str, tuple[float, float] | None]
    calls: float | None
    scores: int
    covered: float
    unsolved: tuple[int, int, int]
    below: tuple[int, int]


def annotated(tree: Tree, facts: Sequence[Fact]) -> tuple[list[Known], list[int]]:
    """For every node what the episode knows there, and what the step itself added: gold passages or facts."""
    known: list[Known] = []
    added: list[int] = []
    for node in tree.nodes:
        before = known[node.parent] if node.parent is not None else Known()
        after, new = Known(before.seen, before.facts), 0
        if node.action == "query" and node.failure is None:
            found = frozenset(passage.id for passage in node.passages)
            new = len({fact.passage for fact in facts} & (found - before.seen))
            after = Known(before.seen | found, before.facts, found)
        elif node.action == "evidence" and node.failure is None:
            said = f" {normalise(node.content or '')} "
            now = frozenset(i for i, fact in enumerate(facts) if fact.held(before.shown, said))
            new, after = len(now - before.facts), Known(before.seen, before.facts | now)
        known.append(after)
        added.append(new)
    return known, added


def better(tree: Tree, facts: Sequence[Fact], one: int, other: int, known: list[Known], added: list[int]) -> int:
    """1 where the first of two siblings is truly better, -1 where the second is, 0 where the facts do not tell."""
    nodes = tree.nodes
    actions = nodes[one].action, nodes[other].action
    if actions[0] == actions[1] and actions[0] != "answer":
        return (added[one] > added[other]) - (added[one] < added[other])
    if set(actions) != {"query", "answer"} or not facts:
        return 0
    search_first = 1 if actions[0] == "query" else -1
    answer = nodes[one if actions[0] == "answer" else other]
    held = known[answer.parent or 0].facts
    needed = range(len(facts)) if is_guessable(tree) else [len(facts) - 1]
    if not held.issuperset(needed):
        return search_first
    return -search_first if exact_match(answer.content, tree.question.golden_answers) == 1.0 else 0


def begun(tree: Tree, share: float) -> Tree:
    """The tree as far as it was when its search had made `share` of its calls, at most; the root at least."""
    calls, kept = 0, 0
    for node in tree.nodes:
        if calls + node.usage.calls > share * tree.usage.calls:
            break
        calls, kept = calls + node.usage.calls, kept + 1
    nodes = tree.nodes[: max(kept, 1)]
    known = tree.known and tuple(place for place in tree.known if place < len(nodes))
    return replace(tree, nodes=nodes, known=known, usage=replace(tree.usage, calls=calls))


def is_guessable(tree: Tree) -> bool:
    return guessable(tree.question.question, tree.question.golden_answers)


@dataclass(frozen=True)
class Judged:
    """A pair: what its steps do, the truth and what the outcomes below say of it (1, -1, 0), where it goes on from."""

    kind: str
    truth: int
    below: int
    parent: int


def judged(tree: Tree, reward: LabelConfig, one_action: bool, found: Sequence[Passage]) -> Iterator[Judged]:
    """Every pair that the reward makes."""
    content = content_reader(TRANSCRIPT)
    checks = step_checks(FilterConfig(repeating=True, unread=True), TRANSCRIPT, content)
    facts = facts_of(tree.question)
    known, added = annotated(tree, facts)
    outcomes = spre(tree, LabelConfig(name="spre", alpha=1.0))
    if reward.grounded:
        tree = grounded(tree, TRANSCRIPT)
    config = PairsConfig(per_node=None, cross_action=not one_action)
    met = chained_met(tree, reward, TRANSCRIPT, found)
    for pair in build_pairs(tree, "", rewards(tree, reward, TRANSCRIPT, met), config):
        if not all(check.passes(pair.prompt, pair.chosen[-1]["content"], pair.action) for check in checks):
            continue
        kind = pair.action if pair.action == pair.rejected_action else "query or answer"
        truth = better(tree, facts, pair.chosen_node, pair.rejected_node, known, added)
        one, other = (outcomes[node] for node in (pair.chosen_node, pair.rejected_node))
        below = (one.value > other.value) - (one.value < other.value) if one and other else 0
        yield Judged(kind, truth, below, tree.nodes[pair.chosen_node].parent or 0)


def measure(name: str, trees: list[Tree], one_action: bool, found: list[tuple[Passage, ...]]) -> Row:
    """All trees' pairs by one reward. `found`: of each tree's answer search."""
    bare, *more = name.split("+")
    reward = LabelConfig.model_validate({"name": bare, "alpha": 1.0, **dict.fromkeys(more, True)})
    total, decided, right, covered, expanded = 0, Counter[str](), Counter[str](), 0, 0
    by_tree: dict[str, list[tuple[int, int]]] = defaultdict(list)  # kind → (right, decided) of each tree
    unsolved, below = Counter[int](), Counter[int]()
    for tree, passages in zip(trees, found, strict=True):
        pairs = list(judged(tree, reward, one_action, passages))
        worked = [pair for pair in pairs if pair.kind in ACTIONS[:2]]
        total += len(pairs)
        covered += len({pair.parent for pair in pairs})
        expanded += sum(len(children) > 1 for children in children_of(tree))
        below.update(pair.below for pair in worked)
        if not solved(tree):
            told = [pair.truth for pair in worked]
            unsolved.update({**Counter(told), 2: int(1 in told or -1 in told)})
        for kind in ACTIONS:
            truths = [pair.truth for pair in pairs if pair.kind == kind and pair.truth]
            decided[kind] += len(truths)
            right[kind] += truths.count(1)
            by_tree[kind].append((truths.count(1), len(truths)))
    worked_right = right["query"] + right["evidence"]
    calls = sum(tree.usage.calls for tree in trees)
    scores = sum(node.belief.usage.calls for tree in trees for node in tree.nodes if node.belief)
    return Row(
        name,
        total,
        dict(decided),
        dict(right),
        {kind: interval(by_tree[kind]) for kind in ACTIONS},
        calls / worked_right if worked_right else None,
        scores if name == "gain" else 0,
        covered / max(1, expanded),
        (unsolved[1], unsolved[-1], unsolved[2]),
        (below[1], below[-1]),
    )


def interval(trees: list[tuple[int, int]]) -> tuple[float, float] | None:
    """Of the share of right pairs, resampling trees; None without a decided pair."""
    counts = np.array(trees)
    if not counts[:, 1].sum():
        return None
    drawn = counts[np.random.default_rng(0).integers(len(counts), size=(2000, len(counts)))].sum(axis=1)
    shares = drawn[:, 0][drawn[:, 1] > 0] / drawn[:, 1][drawn[:, 1] > 0]
    low, high = np.percentile(shares, [2.5, 97.5])
    return float(low), float(high)


async def searched(index: str | None, trees: list[Tree]) -> list[tuple[Passage, ...]]:
    """Of each tree, what a search for its question and answer finds; nothing without an index."""
    if index is None:
        return [()] * len(trees)
    async with aclosing(open_retriever(index)) as retriever:
        await retriever.ready()
        return await AnswerSearches(retriever).found(trees)


def shown(row: Row, kind: str) -> str:
    if not row.decided[kind]:
        return "0"
    low, high = row.interval[kind] or (0.0, 1.0)
    share = 100 * row.right[kind] / row.decided[kind]
    return f"{row.right[kind]} of {row.decided[kind]}: {share:.0f} % ({100 * low:.0f} to {100 * high:.0f})"


def table(rows: list[Row], trees: list[Tree], kind: str) -> list[str]:
    calls = sum(tree.usage.calls for tree in trees)
    lines = [f"{len(trees)} trees of {kind} questions, {calls:,} calls", "",
             "| reward | pairs | query | evidence | query or answer | calls a right query or evidence pair "
             "| scores | covered | of unsolved trees: right, wrong (trees) | outcomes below: for, against |",
             "|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for row in rows:
        cells = [row.reward, str(row.pairs), *(shown(row, action) for action in ACTIONS)]
        cells += [f"{row.calls:.1f}" if row.calls else "none", f"{row.scores:,}", f"{100 * row.covered:.0f} %"]
        right, wrong, reached = row.unsolved
        cells += [f"{right}, {wrong} ({reached})", f"{row.below[0]}, {row.below[1]}"]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trees", nargs="+", type=Path, default=[atlas.DATA / "trees.jsonl.gz"], metavar="FILE")
    parser.add_argument(
        "--rewards", nargs="+", default=["spre", "spre+grounded", "best_leaf", "first_answer", "cover", "gold", "gain"],
        help="names as of label.name; +grounded behind one leaves lucky answers out, +chained lets leading names count",
    )  # fmt: skip
    parser.add_argument("--index", help="searched for question and answer, once a question, for +chained")
    parser.add_argument("--one_action", action="store_true", help="no pairs of a query and an answer")
    parser.add_argument("--share", type=float, default=1.0, help="of each search's calls, the first ones")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    trees = [begun(tree, given.share) for tree, _ in read_trees(*given.trees)]
    kinds = {"open": [t for t in trees if not is_guessable(t)], "guessable": [t for t in trees if is_guessable(t)]}
    kinds = {kind: some for kind, some in kinds.items() if some}
    passages = {kind: asyncio.run(searched(given.index, some)) for kind, some in kinds.items()}
    found = {
        kind: [measure(name, some, given.one_action, passages[kind]) for name in given.rewards]
        for kind, some in kinds.items()
    }
    if given.json:
        sys.stdout.write(json.dumps({kind: [asdict(r) for r in rows] for kind, rows in found.items()}, indent=2) + "\n")
        return
    lines = [line for kind, rows in found.items() for line in table(rows, kinds[kind], kind)]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
