"""Trees over the tunnel's questions: episodes from the question, from random nodes, or the product's own search."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from data_generation.belief import states_of
from data_generation.config import GenerateConfig
from data_generation.expand import make_searcher
from data_generation.growth import root_only
from data_generation.search import grow as search
from steprag.agent.belief import believe
from steprag.agent.environment import Environment
from steprag.experiments.tunnel.play import environment_of, play
from steprag.experiments.tunnel.policy import BatchedPolicy
from steprag.experiments.tunnel.world import DEPTH, FactWorld
from steprag.scores.gold import holds_golden
from steprag.scores.metrics import f1
from steprag.tree import TREE_FORMAT, Node, Tree
from steprag.types import Episode, Found, Question, State, Usage

MOST_TRIES = 1000
Choice = Callable[["Sprout", random.Random], int]
"""Which node the next episode starts at: its place."""


@dataclass(eq=False)
class Sprout:
    """A tree that grows by whole episodes; equal steps of one parent are one node."""

    question: Question
    nodes: list[Node]
    states: list[State]
    below: dict[tuple[int, str, str], int] = field(default_factory=dict)
    calls: int = 0
    usage: Usage = Usage()

    def add(self, at: int, episode: Episode) -> None:
        """Adds what an episode from node `at` made; every node on its way counts one visit more."""
        first = len(self.states[at].steps)
        steps = episode.state.steps[first:]
        self.calls += len(steps) + (episode.refused is not None)
        self.usage += episode.usage
        for taken, step in enumerate(steps, first + 1):
            key = (at, step.action, step.content)
            if key not in self.below:
                self._append(at, _after(episode.state, taken), action=step.action, text=step.text, content=step.content)
                self.below[key] = len(self.nodes) - 1
            at = self.below[key]
        if episode.refused is not None:
            self._append(at, self.states[at], text=episode.refused, failure=episode.finish, terminal=True)
            return
        score = f1(episode.prediction, self.question.golden_answers)
        self.nodes[at] = replace(self.nodes[at], terminal=True, prediction_f1=score)
        up: int | None = at
        while up is not None:
            node = self.nodes[up]
            total = (node.value or 0.0) * node.visits + score
            self.nodes[up] = replace(node, visits=node.visits + 1, value=total / (node.visits + 1))
            up = node.parent

    def _append(self, parent: int, state: State, **facts: object) -> None:
        found = tuple(Found(p.id, p.title, p.score) for p in state.passages) if facts.get("action") == "query" else ()
        golden = self.question.golden_answers
        seen = holds_golden(" ".join(f"{p.title} {p.text}" for p in state.passages), golden) if found else None
        node = Node(len(self.nodes), parent, self.nodes[parent].depth + 1, passages=found, golden_found=seen)
        self.nodes.append(replace(node, **facts))  # pyright: ignore[reportArgumentType]
        self.states.append(state)

    def tree(self, environment: Environment) -> Tree:
        """The tree as a record, each node that was gone on from with its prompt."""
        parents = {node.parent for node in self.nodes}
        nodes = [
            replace(node, messages=environment.observe(state).messages) if node.id in parents else node
            for node, state in zip(self.nodes, self.states, strict=True)
        ]
        grammar = environment.profile.grammar.name
        return Tree(TREE_FORMAT, self.question, "limit", self.usage, tuple(nodes), grammar=grammar)


def _after(state: State, steps: int) -> State:
    """The state of an episode after its first `steps`."""
    passages = (*state.earlier, state.passages)
    return State(state.question, state.steps[:steps], passages[steps], passages[:steps])


def from_question(sprout: Sprout, rng: random.Random) -> int:
    """Every episode starts at the question."""
    del sprout, rng
    return 0


def from_anywhere(sprout: Sprout, rng: random.Random) -> int:
    """Episodes start at a random node that goes on."""
    return rng.choice([node.id for node in sprout.nodes if not node.terminal])


async def sprouts(
    environment: Environment,
    policy: BatchedPolicy,
    questions: Sequence[Question],
    calls: int,
    seed: int,
    choice: Choice,
) -> list[Sprout]:
    """Trees of whole episodes, until all have made `calls` a question together."""
    rng, grown = random.Random(seed), []
    for question in questions:
        state = environment.start(question.question)
        grown.append(Sprout(question, [Node(0, None, 0)], [state]))
    for tried in range(MOST_TRIES):
        places = [choice(sprout, rng) for sprout in grown]
        states = [sprout.states[at] for sprout, at in zip(grown, places, strict=True)]
        seeds = [1000 * ((seed * 7919 + tried) * len(grown) + i) for i in range(len(grown))]
        for sprout, at, episode in zip(grown, places, await play(environment, policy, states, seeds), strict=True):
            sprout.add(at, episode)
        if sum(sprout.calls for sprout in grown) >= calls * len(questions):
            break
    return grown


GROWTHS: dict[str, Choice] = {"flat": from_question, "branch": from_anywhere}


def trees(
    world: FactWorld,
    policy: BatchedPolicy,
    questions: Sequence[Question],
    calls: int,
    seed: int,
    how: str,
) -> list[Tree]:
    """A tree a question, `calls` policy calls each on average. `how`: flat, branch or uct."""
    environment = environment_of(world)
    if how in GROWTHS:
        grown = asyncio.run(sprouts(environment, policy, questions, calls, seed, GROWTHS[how]))
        return [sprout.tree(environment) for sprout in grown]
    grown = {"rollouts": MOST_TRIES, "extra": 0, "children": 3, "siblings": 1, "wave": 1}
    given = {"search": {**grown, "contrast": None, "hopeless": None}, "tree": {"calls": calls}, "seed": seed}
    config = GenerateConfig.model_validate({**given, "episode": {"depth": DEPTH}})
    searcher = make_searcher(environment, policy, None, config)

    async def all_of_them() -> list[Tree]:
        return await asyncio.gather(*(search(root_only(question, environment), searcher) for question in questions))

    return asyncio.run(all_of_them())


def with_beliefs(world: FactWorld, policy: BatchedPolicy, grown: Sequence[Tree]) -> list[Tree]:
    """The trees, at every state that goes on the policy's belief in the golden answer."""
    environment = environment_of(world)

    async def one(tree: Tree) -> Tree:
        states = await states_of(tree, environment)
        open_ = {node.id: state for node, state in zip(tree.nodes, states, strict=True) if state and not node.terminal}
        told = await asyncio.gather(*(believe(environment, policy, tree.question, state) for state in open_.values()))
        beliefs = dict(zip(open_, told, strict=True))
        return replace(tree, nodes=tuple(replace(node, belief=beliefs.get(node.id)) for node in tree.nodes))

    async def every() -> list[Tree]:
        return await asyncio.gather(*(one(tree) for tree in grown))

    return asyncio.run(every())
