"""Episodes that the weights under training play, for GRPO: the one agent (`steprag.agent.environment`),
its policy in this process.

Every completion is kept as the ids that were sent and the ids that were sampled, and becomes a training row of its own:
that prompt, that completion, its episode's advantage. Retrieved text only ever stands in prompts, so no loss falls on
it, whatever a prompt profile looks like; and what is learnt from is to the token what was sampled from.
"""

from __future__ import annotations

import random
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
from steprag.types import Completion, Episode, Message, Passage, Question, Sample, State, Usage
from training.config import GrpoSection
from training.parity import check_prompt, sent_tokens
from training.play.rewards import advantages, score
from training.play.sampling import Batcher, Generate, SampledStep, Sampler
from training.play.turn_credit import Fork, credited, label_rises, unlabelled
from training.play.turn_gains import Score, normalised, open_states, turn_gains

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

    `question`: the place of its question. `fork`, `start`: where it begins, and which searches led there (`retrieved`).

    Output is not constrained: what the policy would have been kept from is what it has to learn, and a constrained
    sample is not one of the distribution that the loss takes it from. Engines that constrain send the same prompts.
    """

    number: int
    question: int
    sampler: Sampler
    sampling: Sampling
    fork: Fork
    start: State
    thinks: bool = False
    turns: list[SampledStep] = field(default_factory=list)
    retrieved: tuple[tuple[Passage, ...], ...] = ()
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
    (`training.play.turn_gains`), or of each turn, in place of advantages (`training.play.turn_credit`); None where they
    are not rewarded or all alike. Where both are None the group is dropped. `worth`: what each turn learns with.
    `forks`: where the episodes began; the turns before an episode's fork are another's. `failure`: why the question
    could not be played to its end; such a group has no episodes and is dropped.
    """

    question: Question
    episodes: list[Episode] = field(default_factory=list)
    turns: list[list[SampledStep]] = field(default_factory=list)
    terms: dict[str, list[float | None]] = field(default_factory=dict)
    totals: list[float] = field(default_factory=list)
    advantages: list[float] | None = None
    gains: list[list[float]] | None = None
    worth: list[list[float]] = field(default_factory=list)
    forks: list[Fork] = field(default_factory=list)
    failure: str | None = None

    @property
    def dropped(self) -> bool:
        """Whether nothing is learnt from the group."""
        return self.advantages is None and self.gains is None

    @property
    def sampled(self) -> list[list[tuple[SampledStep, float]]]:
        """Every turn once, by the episode that sampled it, and its worth."""
        both = [[*zip(turns, worth, strict=True)] for turns, worth in zip(self.turns, self.worth, strict=True)]
        return [row[fork.shared :] for row, fork in zip(both, self.forks, strict=True)] if self.forks else both


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
    thinks = environment.profile.grammar.thinks
    players: list[Player] = []
    failures: dict[int, str] = {}

    async def one(player: Player) -> None:
        try:
            question = questions[player.question]
            player.played = await traced(whole(player, question), "agent", "episode", question.question)
        except RequestError as error:
            failures[player.question] = str(error)
            player.sampler.leave(player.number)

    async def whole(player: Player, question: Question) -> Played:
        start, kept = seed + APART * player.number, calls and calls(question)
        mine = replace(environment, retriever=kept.retriever(environment.retriever)) if kept else environment
        episode = await episode_of(rollout(mine, player, player.start, seed=start))
        player.sampler.leave(player.number)
        episode = replace(episode, retrieved=(*player.retrieved, *episode.retrieved))
        done = Played(question, episode, environment.profile.grammar, _tokens(player.turns))
        return await judge(done, kept, start) if judge and kept else done

    async def every(forks: Sequence[tuple[int, Fork]]) -> None:
        """Plays from each question's start, or from a state of one of its episodes."""
        numbers = range(len(players), len(players) + len(forks))
        sampler = sampling.engine or Batcher(sampling.generate, numbers)
        made = [Player(number, place, sampler, sampling, fork, environment.start(questions[place].question), thinks)
                for number, (place, fork) in zip(numbers, forks, strict=True)]  # fmt: skip
        for player in made:
            if player.fork.shared:
                _begin(player, [one for one in players if one.question == player.question], environment)
        players.extend(made)
        await for_each(made, one, at_once=max(1, len(made)))

    chains = [Fork(number) for number in range(section.episodes)]
    await every([(place, fork) for place in range(len(questions)) for fork in chains])
    if section.branch:
        drawn = random.Random(seed)
        by_question = [[one.played.episode for one in players if one.question == place and one.played]
                       for place in range(len(questions))]  # fmt: skip
        await every([(place, fork) for place, episodes in enumerate(by_question) if place not in failures
                     for fork in forks_of(episodes, environment, section.branch, drawn)])  # fmt: skip
    return [
        Group(question, failure=failures[place])
        if place in failures
        else _group([one for one in players if one.question == place], environment, sampling, section)
        for place, question in enumerate(questions)
    ]


def forks_of(episodes: Sequence[Episode], environment: Environment, most: int, drawn: random.Random) -> list[Fork]:
    """So many states, or fewer where there are not as many, in which an episode had taken a step and went on."""
    places = [Fork(number, len(state.steps)) for number, episode in enumerate(episodes)
              for state in open_states(episode, environment)[1:]]  # fmt: skip
    return drawn.sample(places, min(most, len(places)))


def _begin(player: Player, chains: Sequence[Player], environment: Environment) -> None:
    """Puts a player where its fork is, as if it had played so far itself."""
    chain, shared = chains[player.fork.chain], player.fork.shared
    assert chain.played
    states = open_states(chain.played.episode, environment)[: shared + 1]
    player.start, player.turns = states[-1], chain.turns[:shared]
    player.retrieved = tuple(state.passages for state in states[:-1] if environment.searched(state))


def _group(players: list[Player], environment: Environment, sampling: Sampling, section: GrpoSection) -> Group:
    """The scored episodes of one question, which `players` played."""
    played, turns = [each.played for each in players if each.played], [each.turns for each in players]
    question, episodes = played[0].question, [each.episode for each in played]
    scores = score(played, section.rewards)
    worth = advantages(scores.totals, section.scale)
    group = Group(question, episodes, turns, scores.terms, scores.totals, worth)
    if section.turns or section.branch or section.credit == "state":
        rises, forks = None, [each.fork for each in players]
        if section.turns:
            rises = label_rises(question, episodes, environment, section.turns)
            silent = unlabelled(question, section.turns)
            group.terms[section.turns] = [None if silent else sum(rise) for rise in rises]  # the label at the end
        group = replace(
            group, forks=forks, advantages=None, gains=credited(turns, forks, scores.totals, rises, section)
        )
    elif section.gain:
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
        for episode in group.sampled
        for turn, advantage in episode
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
    return sum(len(turn.completion) for group in groups for episode in group.sampled for turn, _ in episode)


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
        "episodes/tokens": sampled_tokens(groups) / len(episodes),
    }
    for name in {name: None for group in groups for name in group.terms}:
        known = [value for group in groups for value in group.terms.get(name, ()) if value is not None]
        if known:
            numbers[f"rewards/{name}"] = fmean(known)
    return numbers
