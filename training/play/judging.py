"""What the judge says of an episode, for the rewards that ask it: its score, and RAGAS's verdicts.

Every reply is journalled in the run's folder before anything is made of it, so a run that resumes pays for none twice,
and counted against `budget.*` at `judge.price`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from steprag.agent.judge import PROMPT, STRICTNESS, Judge, claims_of, is_supported, is_useful, written_back
from steprag.agent.rewards import Played, kept_text, relevancy_of
from steprag.batch.journal import QuestionCalls
from steprag.engines.models import embedded_encoder
from steprag.engines.threads import one_load
from steprag.policy.open import Model
from steprag.policy.protocols import Policy
from steprag.scores.gold import gold_of
from steprag.types import Passage, Question

JUDGED = frozenset({"judge", "faithfulness", "answer_relevancy"})
"""Rewards that no episode has without a judge."""
APART = 100
"""Between the seeds of two things that the judge is asked of one episode."""


def judged_terms(weights: Mapping[str, float], questions: list[Question]) -> frozenset[str]:
    """The rewards among `weights` that need a judge; context precision does where a question marks no passage."""
    unmarked = any(gold_of(question) is None for question in questions)
    wanted = JUDGED | ({"context_precision"} if unmarked else set())
    return frozenset(wanted & weights.keys())


@dataclass(frozen=True)
class EpisodeJudge:
    """Asks for what `terms` need. `gold`: the score's prompt shows the golden answers. `prompt`: that prompt."""

    model: Model
    terms: frozenset[str]
    gold: bool
    greedy: bool
    prompt: Path = PROMPT

    @property
    def questions(self) -> int:
        """How many are written back from an answer: of a greedy judge all are alike, and vLLM samples none."""
        return 1 if self.greedy else STRICTNESS

    async def read(self, played: Played, calls: QuestionCalls, seed: int) -> Played:
        """The episode with what the judge says of it. Raises PolicyError and BudgetReached."""
        answer = played.episode.prediction
        if answer is None:
            return played
        policy = calls.policy(self.model.policy, "judge", self.model.gate)
        if "judge" in self.terms:
            said = await Judge(policy, self.gold, self.prompt).score(played.question, played.episode.state, seed=seed)
            played = replace(played, judged=said.score)
        if "faithfulness" in self.terms:
            played = replace(played, supported=await _supported(policy, played, seed))
        if "context_precision" in self.terms and gold_of(played.question) is None:
            played = replace(played, useful=await _useful(policy, played, answer, seed))
        if "answer_relevancy" in self.terms:
            back = await written_back(policy, answer, seed=seed, n=self.questions)
            alike = likeness(played.question.question, [one.question for one in back]) if back else []
            played = replace(played, relevancy=relevancy_of(alike, [one.noncommittal for one in back]))
        return played


@cache
def _encoder() -> Any:
    """The embedded encoder (MiniLM), imported and loaded at the first call: most rewards need none."""
    from sentence_transformers import SentenceTransformer

    with one_load():
        return SentenceTransformer(str(embedded_encoder()), device="cpu", local_files_only=True)


def likeness(text: str, others: Sequence[str]) -> list[float]:
    """The cosine of a text's vector and those of others, -1 to 1."""
    vectors = _encoder().encode([text, *others], normalize_embeddings=True, show_progress_bar=False)
    return [float(vectors[0] @ other) for other in vectors[1:]]


async def _supported(policy: Policy, played: Played, seed: int) -> tuple[bool, ...] | None:
    """A verdict on every claim of what the episode kept, against all that its searches found."""
    text = kept_text(played)
    if not text:
        return None
    claims = await claims_of(policy, played.question.question, text, seed=seed)
    if claims is None:
        return None
    passages = [*{p.id: p for search in played.episode.retrieved for p in search}.values()]
    verdicts: dict[str, bool | None] = {}
    for place, claim in enumerate(dict.fromkeys(claims), 1):
        verdicts[claim] = await is_supported(policy, claim, passages, seed=seed + APART * place) if passages else False
    given = [verdicts[claim] for claim in claims]
    return None if None in given else tuple(map(bool, given))


async def _useful(policy: Policy, played: Played, answer: str, seed: int) -> tuple[tuple[bool, ...], ...] | None:
    """A verdict on every passage that a search found, search by search; a passage is asked about once."""
    verdicts: dict[str, bool | None] = {}

    async def of(passage: Passage) -> bool | None:
        if passage.id not in verdicts:
            place = seed + APART * (len(verdicts) + 1)
            verdicts[passage.id] = await is_useful(policy, played.question.question, answer, passage, seed=place)
        return verdicts[passage.id]

    searches = [[await of(passage) for passage in search] for search in played.episode.retrieved]
    if any(one is None for search in searches for one in search):
        return None
    return tuple(tuple(map(bool, search)) for search in searches)
