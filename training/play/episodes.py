"""Episodes that the weights under training play, for GRPO: the one agent (`steprag.agent.environment`),
its policy in this process.

Every completion is kept as the ids that were sent and the ids that were sampled, and becomes a training row of its own:
that prompt, that completion, its episode's advantage. Retrieved text only ever stands in prompts, so no loss falls on
it, whatever a prompt profile looks like; and what is learnt from is to the token what was sampled from.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING

from steprag.agent.environment import Environment
from steprag.agent.grammar import Grammar
from steprag.agent.rewards import Played
from steprag.agent.rollout import episode_of, rollout
from steprag.agent.stack import popped
from steprag.batch.journal import QuestionCalls
from steprag.batch.worklist import for_each
from steprag.engines.reasoning import split
from steprag.engines.tokens import prompt_tokens
from steprag.errors import RequestError
from steprag.policy.traces import traced
from steprag.types import Completion, Episode, Message, Question, Sample, Usage
from training.config import GrpoSection
from training.parity import check_prompt, sent_tokens
from training.play.rewards import advantages, score
from training.play.sampling import Batcher, Generate, SampledStep, Sampler
from training.play.turn_gains import Score, normalised, turn_gains

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Judged = Callable[[Played, QuestionCalls, int], Awaitable[Played]]
"""An episode, its question's calls and a seed to the episode with what the judge says of it."""

APART = 1000
"""Between the seeds of two episodes; the k-th step of an episode samples with its seed + k."""


@dataclass(frozen=True)
class StepRow(SampledStep):
    """What is learnt from: a completion and the advantage of its episode. The loss falls on `completion` alone."""

    advantage: float


@dataclass(frozen=True)
class Sampling:
    """How completions are made: `generate` by the weights as they stand, at most `max_tokens` (it knows how many).

    `ends`: ids of the tokens that end a turn. A prompt is sampled where prompt and completion fit into `max_length`.
    `score`: log-probabilities of given texts, by the same weights. `engine`: what samples in place of `generate`.
    """

    generate: Generate
    tokenizer: PreTrainedTokenizerBase
    ends: frozenset[int]
    max_tokens: int
    max_length: int
    score: Score
    engine: Sampler | None = None


@dataclass
class Player:
    """The `Policy` of one episode; `turns` is what it sampled so far, `played` the episode once it is over.

    Output is not constrained: what the policy would have been kept from is what it has to learn, and a constrained
    sample is not one of the distribution that the loss takes it from. Engines that constrain send the same prompts.
    """

    number: int
    sampler: Sampler
    sampling: Sampling
    thinks: bool = False
    turns: list[SampledStep] = field(default_factory=list)
    played: Played | None = None

    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        """One completion, as `rollout` asks for; empty and "length" where the prompt leaves no room for one."""
        del allowed, n
        how = self.sampling
        prompt = prompt_tokens(messages, how.tokenizer)
        check_prompt(f"episode {self.number + 1}", prompt, sent_tokens([messages], how.tokenizer)[0], how.tokenizer)
        if len(prompt) + how.max_tokens > how.max_length:
            return Sample((Completion("", "length"),), Usage())
        self.turns.append(await self.sampler.sample(self.number, prompt, seed))
        ids = self.turns[-1].completion
        ended = ids[-1] in how.ends
        text = how.tokenizer.decode(ids[:-1] if ended else ids, clean_up_tokenization_spaces=False)
        thought, said = ("", str(text)) if self.thinks else split(str(text))
        completion = Completion(said, "stop" if ended else "length", reasoning=thought)
        return Sample((completion,), Usage(1, len(prompt), len(ids)))


@dataclass(frozen=True)
class Group:
    """The episodes of one question: what each did, sampled and was worth.

    `advantages` is None where all are worth the same. `gains`: of each episode's steps, normalised over the group
    (`training.play.turn_gains`), None where they are not rewarded or all alike. Where both are None the group is
    dropped. `worth`: what each turn learns with. `failure`: why the question could not be played to its end; such a
    group has no episodes and is dropped.
    """

    question: Question
    episodes: list[Episode] = field(default_factory=list)
    turns: list[list[SampledStep]] = field(default_factory=list)
    terms: dict[str, list[float | None]] = field(default_factory=dict)
    totals: list[float] = field(default_factory=list)
    advantages: list[float] | None = None
    gains: list[list[float]] | None = None
    worth: list[list[float]] = field(default_factory=list)
    failure: str | None = None

    @property
    def dropped(self) -> bool:
        """Whether nothing is learnt from the group."""
        return self.advantages is None and self.gains is None


async def play(
    questions: Sequence[Question],
    environment: Environment,
    sampling: Sampling,
    section: GrpoSection,
    *,
    seed: int,
    calls: Callable[[Question], QuestionCalls] | None = None,
    judge: Judged | None = None,
) -> list[Group]:
    """`section.episodes` episodes of every question, all at once, scored.

    `calls`: a question's in the run's journal: no search or reply of the judge is made that is there. A `judge` needs
    it. A search or a request to the judge that fails costs its question's group (`Group.failure`). Raises the judge's
    BudgetReached.
    """
    size = section.episodes
    sampler = sampling.engine or Batcher(sampling.generate, len(questions) * size)
    thinks = environment.profile.grammar.thinks
    players = [Player(number, sampler, sampling, thinks) for number in range(len(questions) * size)]
    failures: dict[int, str] = {}

    async def one(player: Player) -> None:
        try:
            question = questions[player.number // size]
            player.played = await traced(whole(player, question), "agent", "episode", question.question)
        except RequestError as error:
            failures[player.number // size] = str(error)
            sampler.leave(player.number)

    async def whole(player: Player, question: Question) -> Played:
        start, kept = seed + APART * player.number, calls and calls(question)
        mine = replace(environment, retriever=kept.retriever(environment.retriever)) if kept else environment
        episode = await episode_of(rollout(mine, player, mine.start(question.question), seed=start))
        sampler.leave(player.number)
        done = Played(question, episode, environment.profile.grammar, _tokens(player.turns))
        return await judge(done, kept, start) if judge and kept else done

    await for_each(players, one, at_once=len(players))
    return [
        Group(question, failure=failures[place])
        if place in failures
        else _group(players[place * size : (place + 1) * size], environment, sampling, section)
        for place, question in enumerate(questions)
    ]


def _group(players: list[Player], environment: Environment, sampling: Sampling, section: GrpoSection) -> Group:
    """The scored episodes of one question, which `players` played."""
    played, turns = [each.played for each in players if each.played], [each.turns for each in players]
    question, episodes = played[0].question, [each.episode for each in played]
    scores = score(played, section.rewards)
    worth = advantages(scores.totals, section.scale)
    group = Group(question, episodes, turns, scores.terms, scores.totals, worth)
    if section.gain:
        gains = turn_gains(question, episodes, environment, sampling.tokenizer, sampling.score)
        apart = normalised(gains, section.scale)
        group = replace(group, gains=apart and [[section.gain * gain for gain in episode] for episode in apart])
    return replace(group, worth=_worth(group, environment.profile.grammar, section))


def rows_of(groups: Sequence[Group], dropped: bool = False) -> list[StepRow]:
    """The rows of the groups that are not dropped, those of like prompts side by side. `dropped`: of all groups, since
    a divergence also holds rows of advantage 0 to the reference.

    A row's advantage is its episode's and, where turns are rewarded, its own step's beside it.
    """
    rows = [
        StepRow(turn.prompt, turn.completion, advantage, logps=turn.logps)
        for group in groups
        if dropped or not group.dropped
        for turns, worth in zip(group.turns, group.worth, strict=True)
        for turn, advantage in zip(turns, worth, strict=True)
    ]
    return sorted(rows, key=lambda row: (len(row.prompt), row.prompt, row.completion))


def _worth(group: Group, grammar: Grammar, section: GrpoSection) -> list[list[float]]:
    """Every turn's worth: its episode's advantage, normalised before it fans out, and its gain; answers have none."""
    whole = group.advantages or [0.0] * len(group.turns)
    gains = group.gains or [[] for _ in group.turns]
    tokens = [*map(_tokens, group.turns)]
    usual = fmean(tokens)
    found: list[list[float]] = []
    for number, episode in enumerate(group.episodes):
        back = popped(episode.state.steps, grammar)
        places = range(len(group.turns[number]))
        worth = [whole[number] + (gains[number][at] if at < len(gains[number]) else 0.0) for at in places]
        if section.credit == "kept":
            worth = [min(one, 0.0) if at in back else one for at, one in enumerate(worth)]
        scale = usual / tokens[number] if section.weigh == "episode" and tokens[number] else 1.0
        found.append([scale * one for one in worth])
    return found


def sampled_tokens(groups: Sequence[Group]) -> int:
    """How many tokens all episodes of a step have, dropped groups included."""
    return sum(_tokens(turns) for group in groups for turns in group.turns)


def _tokens(turns: Sequence[SampledStep]) -> int:
    """How many were sampled."""
    return sum(len(turn.completion) for turn in turns)


def numbers_of(groups: Sequence[Group]) -> dict[str, float]:
    """What a step's episodes were like: means over them; each reward alone, over those of which it says something.

    Of groups that failed there is nothing but their share, which counts as dropped too.
    """
    episodes = [episode for group in groups for episode in group.episodes]
    numbers = {
        "groups_dropped": fmean(group.dropped for group in groups),
        "groups_failed": fmean(group.failure is not None for group in groups),
    }
    if not episodes:
        return numbers
    numbers |= {
        "reward": fmean(total for group in groups for total in group.totals),
        "episodes/answered": fmean(episode.prediction is not None for episode in episodes),
        "episodes/steps": fmean(len(episode.state.steps) for episode in episodes),
        "episodes/searches": fmean(len(episode.retrieved) for episode in episodes),
        "episodes/tokens": fmean(_tokens(turns) for group in groups for turns in group.turns),
    }
    for name in {name: None for group in groups for name in group.terms}:
        known = [value for group in groups for value in group.terms.get(name, ()) if value is not None]
        if known:
            numbers[f"rewards/{name}"] = fmean(known)
    return numbers
