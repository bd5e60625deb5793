"""From a path to a question: a draft is written and has to pass every gate. The first gate that it fails is counted.

A reader answers from given passages. Gates that need no reader come first, then the cheapest readings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from apps.adapt.passages import PassagePath
from preference.config import LabelConfig
from preference.labels.estimates import outcomes
from preference.rewards import Estimate, Rewards
from steprag.agent.facts import facts_about, found_and_kept, keeping, retrieving, without_luck
from steprag.agent.grammar import Grammar
from steprag.agent.inert import neutralise, screened, without_instructions
from steprag.agent.retriever import Retriever
from steprag.batch.results import ResultKind
from steprag.errors import StepFormatError
from steprag.scores.gold import facts_of, holds_golden, mentions
from steprag.scores.metrics import normalise
from steprag.tree import Tree
from steprag.types import Passage, Question, Usage

GATES = {
    "unwritten": "the passages gave no question, or the reply could not be read",
    "order": "the question or answer reads as an order to a model, or holds markup",
    "answer": "the answer does not stand in its passage, or the question says it",
    "bridge": "its passages do not lead to each other, or it says a name that leads between them",
    "copied": "the question repeats words of a passage, many in a row",
    "unread": "a reply to one of its readings could not be read",
    "known": "it is answered without any passage",
    "first": "the first search alone answers it",
    "spare": "it is answered although one of its passages is left out",
    "disagree": "a second reading of its passages answers otherwise",
    "contradicted": "other passages answer otherwise",
    "double": "an earlier question asks the same",
    "leak": "a document of another part (to train on, to test on) says the same",
    "surplus": "enough questions of its kind had passed",
}
"""Gates in their order, and what stands in the report for each."""
ANSWER_WORDS, COPIED, FOUND = 12, 8, 3
"""Words of an answer at most; words in a row that a question may not have of a passage; passages of a search."""


@dataclass(frozen=True)
class Hop:
    """A question of one passage with its answer."""

    question: str
    answer: str


@dataclass(frozen=True)
class Draft:
    """A question as it was written: over its hops, one a passage of the path."""

    question: str
    answer: str
    hops: tuple[Hop, ...]


@dataclass(frozen=True)
class MadeQuestion:
    """What became of a path: its draft, and the first gate that it failed (`GATES`), none where it passed.

    `passages`: ids, in the path's order. `said`: the reading by which it failed.
    """

    id: str
    split: str
    passages: tuple[str, ...]
    bridges: tuple[str, ...]
    draft: Draft | None
    gate: str
    usage: Usage
    said: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def hops(self) -> int:
        """Passages that it leads through."""
        return len(self.passages)

    def asked(self) -> Question:
        """The question with its marked passages, and the fact that each states. Only of one that has a draft."""
        draft = self.draft or Draft("", "", ())
        told = zip(self.passages, draft.hops, strict=True)
        metadata = {"type": "bridge" if self.hops > 1 else "one", "hops": self.hops, "split": self.split,
                    "supporting_ids": [*self.passages], "bridges": [*self.bridges],
                    "hop_questions": [hop.question for hop in draft.hops],
                    "facts": [{"passage": passage, "anyof": [[hop.answer]]} for passage, hop in told]}  # fmt: skip
        return Question(self.id, draft.question, (draft.answer,), metadata)


MADE = ResultKind(MadeQuestion, lambda made: made.id)


class QuestionWriter(Protocol):
    """Writes questions over passages, and reads passages for answers."""

    usage: Usage

    async def write(self, path: PassagePath, passages: Sequence[Passage]) -> Draft | None:
        """A draft with a hop a passage; None where there is none."""
        ...

    async def read(self, draft: Draft, passages: Sequence[Passage], *, knowing: bool) -> str | None:
        """The answer that the passages give, none where they give none; `knowing`: also from what the reader knows.

        Raises StepFormatError where nobody can tell.
        """
        ...


async def make(
    path: PassagePath, passages: Sequence[Passage], writer: QuestionWriter, retriever: Retriever
) -> MadeQuestion:
    """Writes a path's question and takes it through the gates. `passages`: the path's, as they stand in the index.

    What passages say is data: sentences that give orders are taken out before anything is written from them.
    """
    shown = screened(passages)
    draft = await writer.write(path, shown)
    gate, said = ("unwritten", "") if draft is None else (_unread(draft, path, shown), "")
    if draft is not None and not gate:
        try:
            gate, said = await _read(draft, passages, writer, retriever)
        except StepFormatError as error:
            gate, said = "unread", str(error)
    ids = tuple(passage.id for passage in passages)
    return MadeQuestion(path.id, path.split, ids, path.bridges, draft, gate, writer.usage, said)


def _unread(draft: Draft, path: PassagePath, passages: Sequence[Passage]) -> str:
    """The first gate that a draft fails without a reading; none where it passes them."""
    hops = draft.hops
    texts = (draft.question, draft.answer, *(hop.question for hop in hops))
    if any(neutralise(text) != text or without_instructions(text) != text for text in texts):
        return "order"
    stands = (0 < len(normalise(hop.answer).split()) <= ANSWER_WORDS and holds_golden(passage.text, (hop.answer,))
              for hop, passage in zip(hops, passages, strict=True))  # fmt: skip
    same_end = normalise(draft.answer) == normalise(hops[-1].answer)
    if not all(stands) or not same_end or holds_golden(draft.question, (draft.answer,)):
        return "answer"
    for hop, bridge, onward in zip(hops[:-1], path.bridges, hops[1:], strict=True):
        leads = agree(hop.answer, bridge) and holds_golden(onward.question, (hop.answer,))
        if not leads or holds_golden(draft.question, (hop.answer,)):
            return "bridge"
    asks = runs_of(draft.question, COPIED)
    return "copied" if any(asks & runs_of(passage.text, COPIED) for passage in passages) else ""


def runs_of(text: str, length: int) -> set[tuple[str, ...]]:
    """All that many words in a row of a text."""
    words = normalise(text).split()
    return {tuple(words[at : at + length]) for at in range(len(words) - length + 1)}


async def _read(
    draft: Draft, passages: Sequence[Passage], writer: QuestionWriter, retriever: Retriever
) -> tuple[str, str]:
    """The first gate that a draft fails by a reading, and what that said; a reading gives an answer or none."""

    async def gives(shown: Sequence[Passage], *, knowing: bool = True) -> str:
        return await writer.read(draft, screened(shown), knowing=knowing) or ""

    if agree(said := await gives(()), draft.answer):
        return "known", said
    if len(passages) > 1:
        first = await retriever.search(draft.question, FOUND)
        told = any(holds_golden(one.text, (draft.answer,)) for one in first)
        if told and agree(said := await gives(first), draft.answer):
            return "first", said
        for left_out in passages:
            rest = [one for one in passages if one is not left_out]
            if agree(said := await gives(rest), draft.answer):
                return "spare", said
    if not same(said := await gives(passages, knowing=False), draft.answer):
        return "disagree", said
    found = {one.id: one for hop in draft.hops for one in await retriever.search(hop.question, FOUND)}
    others = [one for key, one in found.items() if key not in {passage.id for passage in passages}]
    if others and (said := await gives(others, knowing=False)) and not agree(said, draft.answer):
        return "contradicted", said
    return "", ""


def same(said: str, answer: str) -> bool:
    """Whether two answers agree and neither has more than twice the other's words."""
    fewer, more = sorted(len(normalise(one).split()) for one in (said, answer))
    return agree(said, answer) and more <= 2 * fewer


def agree(said: str, answer: str) -> bool:
    """Whether two answers are the same, or one has the other's words in a row ("lek" and "the Albanian lek")."""
    one, other = normalise(said), normalise(answer)
    return bool(one and other) and (any(mentions(one, [other])) or any(mentions(other, [one])))


def by_facts(tree: Tree, grammar: Grammar) -> Rewards:
    """For a step that searches, the share of the facts whose passages were found by then; for one that keeps, of those
    that the kept text states. Answers have their outcome, lucky ones none. Titles of documents say nothing here.
    """
    needed, searches, keeps = facts_of(tree.question), retrieving(grammar), keeping(grammar)
    worth: Rewards = []
    facts = facts_about(tree, grammar)
    answers = outcomes(without_luck(facts).tree, LabelConfig())
    for node, answer, (found, kept) in zip(tree.nodes, answers, found_and_kept(facts), strict=True):
        if node.action in searches | keeps and node.failure is None:
            has = [fact.passage in found if node.action in searches else fact.held(found, kept) for fact in needed]
            worth.append(Estimate(sum(has) / len(needed), 0.0, "facts"))
        else:
            worth.append(None if answer is None else Estimate(answer, 0.0, "answer"))
    return worth
