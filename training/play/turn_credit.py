"""What each turn of a group learns with where its episode's outcome alone does not say it.

`grpo.turns`: a label of steps is each turn's reward. `grpo.credit state`: a step is compared with what else was said to
the same prompt (GiGPO, arXiv 2505.10978). `grpo.branch`: a stretch between two forks is compared with all that was
played from its first fork (Tree-GRPO, arXiv 2509.21240).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, pstdev, stdev

from steprag.agent.chained import Texts, chained_match
from steprag.agent.environment import Environment
from steprag.agent.facts import facts_about, gold_shares
from steprag.errors import ConfigError
from steprag.scores.gold import gold_of, holds_golden
from steprag.scores.metrics import guessable
from steprag.tree import Node, Tree
from steprag.types import Episode, Found, Passage, Question, Usage
from training.config import GrpoSection
from training.play.rewards import SAME
from training.play.sampling import SampledStep

Worths = list[list[float]]
"""A number for every turn of every episode of a group."""

NO_LABEL = {
    "gold": "no question marks passages (metadata.supporting_titles); take chained",
    "chained": "every answer can be guessed, so that its words prove nothing; leave turns out, or mark passages and "
    "take gold",
}
"""What to say, by label, where it says nothing of any question."""


@dataclass(frozen=True)
class Fork:
    """Where an episode begins: behind the first `shared` turns of the episode with number `chain` in its group."""

    chain: int
    shared: int = 0


def credited(
    turns: Sequence[Sequence[SampledStep]], forks: Sequence[Fork], totals: Sequence[float], rises: Worths | None,
    section: GrpoSection,
) -> Worths | None:  # fmt: skip
    """The advantage of every turn; None where all are alike. `rises`: what each step earned itself, by `label_rises`.

    A turn returns what it and the later turns of its episode earn. That is compared with what other episodes return
    from the same turn on; without rises, where a turn returns its episode's total, by stretches. With scale "group" the
    advantages are divided by the standard deviation of the totals, or with rises of all turns.
    """
    returns = _returns(turns, totals, rises)
    apart = _stretches(turns, forks, totals) if rises is None else _by_turn(returns)
    own = [one for row, fork in zip(apart, forks, strict=True) for one in row[fork.shared :]]
    spread = stdev(totals) if rises is None else pstdev(own or [0.0])
    if spread < SAME:
        return None
    if section.credit == "state":
        apart = _by_state(turns, forks, returns, apart)
    return [[one / (spread if section.scale == "group" else 1.0) for one in row] for row in apart]


def _returns(turns: Sequence[Sequence[SampledStep]], totals: Sequence[float], rises: Worths | None) -> Worths:
    if rises is None:
        return [[total] * len(row) for row, total in zip(turns, totals, strict=True)]
    found: Worths = []
    for row, rise, total in zip(turns, rises, totals, strict=True):
        earned = [*rise, *[0.0] * len(row)][: len(row)]  # a completion that was refused is a turn without a step
        found.append([total + sum for sum in accumulate(reversed(earned))][::-1])
    return found


def _by_turn(returns: Worths) -> Worths:
    """Each return less the mean of those from the turn with the same number."""
    usual = [fmean(row[at] for row in returns if at < len(row)) for at in range(max(map(len, returns)))]
    return [[one - usual[at] for at, one in enumerate(row)] for row in returns]


def _stretches(turns: Sequence[Sequence[SampledStep]], forks: Sequence[Fork], totals: Sequence[float]) -> Worths:
    """The mean total of the episodes that go through a turn, less that of those that go through the stretch before its
    own; of all where there is none. Without forks: each total less the mean of all.
    """

    def through(number: int, at: int) -> list[float]:
        fork = forks[number]
        chain = fork.chain if at < fork.shared else number
        return [total for other, (total, its) in enumerate(zip(totals, forks, strict=True))
                if other == chain or (its.chain == chain and at < its.shared)]  # fmt: skip

    found: Worths = []
    for number, row in enumerate(turns):
        before, last, worths = list(totals), list[float](), list[float]()
        for at in range(len(row)):
            here = through(number, at)
            if last and len(here) < len(last):  # a fork lies between this turn and the one before
                before = last
            last = here
            worths.append(fmean(here) - fmean(before))
        found.append(worths)
    return found


def _by_state(turns: Sequence[Sequence[SampledStep]], forks: Sequence[Fork], returns: Worths, apart: Worths) -> Worths:
    """The mean return of the turns that said the same to a prompt, less the mean of all that it was put to; of prompts
    that were put once, what `apart` says.
    """
    asked: dict[tuple[int, ...], list[float]] = defaultdict(list)
    said: dict[tuple[tuple[int, ...], tuple[int, ...]], list[float]] = defaultdict(list)
    times: dict[tuple[int, ...], int] = defaultdict(int)
    keys = [[(tuple(turn.prompt), tuple(turn.completion)) for turn in row] for row in turns]
    for row, values, fork in zip(keys, returns, forks, strict=True):
        for at, (key, value) in enumerate(zip(row, values, strict=True)):
            asked[key[0]].append(value)
            said[key].append(value)
            times[key[0]] += at >= fork.shared
    return [[fmean(said[key]) - fmean(asked[key[0]]) if times[key[0]] > 1 else one
             for key, one in zip(row, old, strict=True)] for row, old in zip(keys, apart, strict=True)]  # fmt: skip


def check_labelled(questions: Sequence[Question], section: GrpoSection) -> None:
    """Raises ConfigError where the label of `grpo.turns` says nothing of any question."""
    if section.turns and all(unlabelled(question, section.turns) for question in questions):
        raise ConfigError(f"grpo.turns {section.turns}: {NO_LABEL[section.turns]}")


def unlabelled(question: Question, label: str) -> bool:
    """Whether the label says nothing of any step of the question's episodes."""
    return gold_of(question) is None if label == "gold" else guessable(question.question, question.golden_answers)


def label_rises(question: Question, episodes: Sequence[Episode], environment: Environment, label: str) -> Worths:
    """For every episode, by how much each of its steps raised the label: `gold`, the share of the marked passages
    found, or kept; `chained`, chained match over all passages of the group. Steps without a label raise nothing.
    """
    tree, ways, texts = _chains(question, episodes, environment)
    facts = facts_about(tree, environment.profile.grammar)
    values = gold_shares(facts) if label == "gold" else chained_match(facts, texts=texts)
    found: Worths = []
    for way in ways:
        last, rises = 0.0, list[float]()
        for node in way:
            now = last if (value := values[node]) is None else value
            rises.append(now - last)
            last = now
        found.append(rises)
    return found


def _chains(
    question: Question, episodes: Sequence[Episode], environment: Environment
) -> tuple[Tree, list[list[int]], Texts]:
    """The episodes side by side below one root, the nodes of each, and the texts of all passages by title."""
    first = next((episode.state.earlier[0] for episode in episodes if episode.state.earlier), ())
    nodes, ways, texts = [Node(0, None, 0, passages=_found(first))], list[list[int]](), dict[str, str]()
    for episode in episodes:
        way, passages = [0], (*episode.state.earlier, episode.state.passages)
        for step, read in zip(episode.state.steps, passages[1:], strict=True):
            searched = environment.profile.grammar.action(step.action).retrieves
            seen = any(holds_golden(p.text, question.golden_answers) for p in read) if searched else None
            nodes.append(Node(len(nodes), way[-1], len(way), step.action, step.text, step.content,
                              passages=_found(read), golden_found=seen))  # fmt: skip
            way.append(nodes[-1].id)
        ways.append(way[1:])
        for passage in {passage: None for read in passages for passage in read}:
            if passage.title and passage.text not in texts.get(passage.title, ""):
                texts[passage.title] = "\n".join(filter(None, (texts.get(passage.title), passage.text)))
    return Tree(1, question, "", Usage(), tuple(nodes)), ways, texts


def _found(passages: Sequence[Passage]) -> tuple[Found, ...]:
    return tuple(Found(passage.id, passage.title, passage.score) for passage in passages)
