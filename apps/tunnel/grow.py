"""Trees over the tunnel's questions, by the product's search or by whole episodes; and the play of test questions.

A search takes a tree that is its root only and what the search works with, as `data_generation.search.grow` does, and
returns the tree when it has made `searcher.config.tree.calls` calls.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TypeVar

from apps.tunnel.model import Weights
from apps.tunnel.policy import BatchedPolicy
from apps.tunnel.world import DEPTH, SHOWN, FactWorld
from data_generation.belief import believed
from data_generation.config import GenerateConfig
from data_generation.expand import Searcher, make_searcher
from data_generation.growth import SearchNode, SearchTree, add_reward, finished, root_only
from data_generation.search import grow
from steprag.agent.environment import Environment
from steprag.agent.profiles import load_profile
from steprag.agent.rollout import episode_of, rollout
from steprag.policy.protocols import Policy
from steprag.scores.gold import holds_golden
from steprag.scores.metrics import f1
from steprag.tree import Node, Tree
from steprag.types import Episode, Found, Question, State

Search = Callable[[SearchTree, Searcher], Awaitable[Tree]]
T = TypeVar("T")
AT_ONCE = 360
WAVE = 4
"""Episodes of a tree that are played at the same time."""
LIKELY = 10
"""Calls that an episode is thought to take: where less than half of them are left, none is begun."""


async def gathered(some: Iterable[Awaitable[T]], at_once: int | None = None) -> list[T]:
    """What all of them give, awaited side by side, or so many at once."""
    left, told = iter(some), list[T]()
    while wave := list(islice(left, at_once)):
        told += await asyncio.gather(*wave)
    return told


def together(some: Iterable[Awaitable[T]], at_once: int | None = None) -> list[T]:
    """`gathered`, outside of a loop."""
    return asyncio.run(gathered(some, at_once))


def environment_of(world: FactWorld) -> Environment:
    """The agent's environment over a world."""
    return Environment(load_profile("tunnel"), world, SHOWN, DEPTH)


def with_ends(environment: Environment) -> Environment:
    """The environment, whose prompts show the end of each step."""
    words = environment.profile.words.model_copy(update={"step": "{text} </s> "})
    return replace(environment, profile=replace(environment.profile, words=words))


def answers(environment: Environment, weights: Weights, questions: Sequence[Question]) -> list[str | None]:
    """The greedy answer to every question, None where there is none; questions of like length are played together."""
    order = sorted(range(len(questions)), key=lambda i: len(questions[i].question.split()))
    told = predictions(environment, BatchedPolicy(weights, 0.0), [questions[i] for i in order], AT_ONCE)
    said = dict(zip(order, asyncio.run(told), strict=True))
    return [said[i] for i in range(len(order))]


async def predictions(
    environment: Environment, policy: Policy, questions: Sequence[Question], at_once: int
) -> list[str | None]:
    """The policy's answer to every question, None where there is none."""
    starts = (environment.start(asked.question) for asked in questions)
    played = (episode_of(rollout(environment, policy, start, seed=0)) for start in starts)
    return [episode.prediction for episode in await gathered(played, at_once)]


async def flat(tree: SearchTree, searcher: Searcher) -> Tree:
    """Every episode starts at the question."""
    return await _episodes(tree, searcher, lambda rng: tree.root)


async def branching(tree: SearchTree, searcher: Searcher) -> Tree:
    """Episodes start at random open nodes."""
    return await _episodes(tree, searcher, lambda rng: rng.choice([n for n in tree.nodes if not n.record.terminal]))


async def _episodes(tree: SearchTree, searcher: Searcher, choice: Callable[[random.Random], SearchNode]) -> Tree:
    rng, most = random.Random(f"{searcher.config.seed}/{tree.question.id}"), searcher.config.tree.calls or 0
    while (left := most - tree.usage.calls) > LIKELY // 2:
        count = min(WAVE, max(1, left // LIKELY))
        places = [(choice(rng), rng.randrange(2**40) * 32) for _ in range(count)]
        episodes = await asyncio.gather(
            *(episode_of(rollout(searcher.environment, searcher.policy, at.state, seed=seed)) for at, seed in places)
        )
        for (at, _), episode in zip(places, episodes, strict=True):
            graft(tree, at, episode, searcher.environment)
    return finished(tree, "limit")


def graft(tree: SearchTree, at: SearchNode, episode: Episode, environment: Environment) -> None:
    """Adds what an episode from node `at` made; equal steps of one parent are one node."""
    tree.usage += episode.usage
    golden, state = tree.question.golden_answers, episode.state
    passages = (*state.earlier, state.passages)
    for taken in range(len(at.state.steps), len(state.steps)):
        step = state.steps[taken]
        after = State(state.question, state.steps[: taken + 1], passages[taken + 1], passages[: taken + 1])
        found = tuple(Found(passage.id, passage.title, passage.score) for passage in after.passages)
        told = " ".join(f"{passage.title} {passage.text}" for passage in after.passages)
        seen, ended = holds_golden(told, golden) if found else None, environment.ended(after)
        node = Node(-1, None, taken + 1, step.action, step.text, step.content, terminal=ended, passages=found,
                    golden_found=seen)  # fmt: skip
        at = _child(tree, at, node, after, environment)
    if episode.refused is not None:
        failed = Node(-1, None, at.record.depth + 1, text=episode.refused, failure=episode.finish, terminal=True)
        _child(tree, at, failed, at.state, environment)
        return
    score = f1(episode.prediction, golden)
    at.record = replace(at.record, prediction_f1=score)
    add_reward(at, score)


def _child(tree: SearchTree, at: SearchNode, record: Node, state: State, environment: Environment) -> SearchNode:
    """The child of `at` that took the same step, or else a new one; what was refused is always new."""
    if at.record.messages is None:  # the prompt that its children see
        at.record = replace(at.record, messages=environment.observe(at.state).messages)
    for child in at.children:
        if record.action and (child.record.action, child.record.content) == (record.action, record.content):
            return child
    node = SearchNode(record, state, at, full=record.terminal, closed=record.terminal)
    at.children.append(node)
    tree.number(node)
    return node


SEARCHES: dict[str, Search] = {"flat": flat, "branching": branching, "UCT": grow}


def searcher_of(environment: Environment, policy: Policy, calls: int, seed: int) -> Searcher:
    """What a search of so many calls a tree works with."""
    keys = {"rollouts": 1000, "extra": 0, "children": 3, "siblings": 1, "wave": 1, "contrast": None, "hopeless": None}
    config = GenerateConfig.model_validate(
        {"search": keys, "tree": {"calls": calls}, "seed": seed, "episode": {"depth": environment.depth}}
    )
    return make_searcher(environment, policy, None, config)


def grown(
    world: FactWorld, weights: Weights, questions: Sequence[Question], calls: int, seed: int, search: Search
) -> list[Tree]:
    """A tree a question, grown side by side with `calls` policy calls each."""
    environment = environment_of(world)
    searcher = searcher_of(environment, BatchedPolicy(weights), calls, seed)
    return together(search(root_only(question, environment), searcher) for question in questions)


@dataclass(eq=False)
class Forest:
    """Trees of one world, and the policy that grew them."""

    world: FactWorld
    trees: list[Tree]
    weights: Weights

    @cached_property
    def believed(self) -> list[Tree]:
        """The trees, with the policy's belief in the golden answer at every open state."""
        environment, policy = environment_of(self.world), BatchedPolicy(self.weights)
        return together(believed(tree, environment, policy) for tree in self.trees)
