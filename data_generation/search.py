"""Monte Carlo tree search for one question, as functions over plain lists.

One iteration (`grow` shows the loop): `select` walks down by UCT to a node that may still branch, `expand` samples its
children in one request, one of them is played to an answer, and `backup` carries each answer's reward to the root.
What is played stays in the tree. Terminal and fully explored nodes are closed and not visited again.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

from data_generation.config import RewardConfig, SearchConfig
from steprag.environment import Environment
from steprag.errors import StepFormatError
from steprag.metrics import f1, normalise
from steprag.policy import Policy
from steprag.tree import discounted
from steprag.types import Completion, Found, Node, Question, State, Tree, Usage

TREE_FORMAT = 1


@dataclass
class Growth:
    """A tree while it grows: one entry a node in every list, indexed by node id.

    `nodes` holds what is settled when a node is made; visits and reward sums live beside it until `finished`.
    `visits` counts rewarded answers below a node (or at it), `rewards` sums their rewards. `branched`: the node has
    been asked for all its children. `closed`: nothing below is left to explore.
    """

    question: Question
    nodes: list[Node] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    children: list[list[int]] = field(default_factory=list)
    visits: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    branched: list[bool] = field(default_factory=list)
    closed: list[bool] = field(default_factory=list)
    usage: Usage = Usage()

    def add(self, node: Node, state: State) -> int:
        """Appends a node whose id is the next one and hangs it below its parent."""
        self.nodes.append(node)
        self.states.append(state)
        self.children.append([])
        self.visits.append(0)
        self.rewards.append(0.0)
        self.branched.append(False)
        self.closed.append(node.terminal)
        if node.parent is not None:
            self.children[node.parent].append(node.id)
        return node.id


async def grow(
    growth: Growth, environment: Environment, policy: Policy, search: SearchConfig, reward: RewardConfig, seed: int
) -> Tree:
    """Grows the tree in place and returns it finished. Raises PolicyError and RetrieverError; `growth` keeps what was
    paid for.
    """
    growth.add(Node(id=0, parent=None, depth=0), environment.start(growth.question.question))
    for _ in range(search.rollouts):
        leaf = select(growth, search.exploration)
        if leaf is None:
            break
        width = search.children - len(growth.children[leaf])
        growth.branched[leaf] = True
        fresh = await expand(growth, leaf, width, environment, policy, reward, seed)
        await play(growth, fresh, environment, policy, reward, seed)
    return finished(growth, "done")


def plant(question: Question) -> Growth:
    """An empty tree for a question."""
    return Growth(question)


def select(growth: Growth, exploration: float) -> int | None:
    """The node to expand next: from the root, down the best open child, to the first that has not branched.

    None where the whole tree is closed.
    """
    if growth.closed[0]:
        return None
    node = 0
    while growth.branched[node]:
        open_children = [child for child in growth.children[node] if not growth.closed[child]]
        node = max(open_children, key=lambda child: (uct(growth, child, exploration), -child))
    return node


def uct(growth: Growth, node: int, exploration: float) -> float:
    """Q + c·√(ln N_parent / N) (Kocsis and Szepesvári 2006); infinite for a node without visits."""
    visits, parent = growth.visits[node], growth.nodes[node].parent
    if visits == 0 or parent is None:
        return math.inf
    return growth.rewards[node] / visits + exploration * math.sqrt(math.log(growth.visits[parent]) / visits)


async def expand(
    growth: Growth, parent: int, width: int, environment: Environment, policy: Policy, reward: RewardConfig, seed: int
) -> list[int]:
    """Samples up to `width` new children of `parent` in one request and returns their ids.

    A completion equal to a sibling (same action, same normalised content) is merged into it. Answers are rewarded and
    backed up at once: that costs no call.
    """
    if width <= 0:
        settle(growth, parent)
        return []
    observation = environment.observe(growth.states[parent])
    request_seed = random.Random(f"{seed}/{growth.question.id}/{parent}/{len(growth.children[parent])}").getrandbits(31)
    sample = await policy.sample(observation.messages, observation.allowed, n=width, seed=request_seed)
    growth.usage += sample.usage
    growth.nodes[parent] = replace(growth.nodes[parent], messages=observation.messages)
    usage, fresh = sample.usage, []
    for completion in sample.completions:
        child = await _child(growth, parent, completion, environment)
        if child is not None:
            fresh.append(growth.add(replace(child[0], usage=usage), child[1]))
            usage = Usage()
    for node in fresh:
        _reward(growth, node, environment, reward)
    settle(growth, parent)
    return fresh


async def _child(
    growth: Growth, parent: int, completion: Completion, environment: Environment
) -> tuple[Node, State] | None:
    """The node that a completion makes below `parent`, with its state; None if a sibling is the same step."""
    above, state = growth.nodes[parent], growth.states[parent]
    node = Node(id=len(growth.nodes), parent=parent, depth=above.depth + 1, text=completion.text)
    try:
        step = environment.parse(state, completion)
    except StepFormatError as error:
        return replace(node, terminal=True, failure=error.reason), state
    same = (step.action, normalise(step.content))
    siblings = (growth.nodes[sibling] for sibling in growth.children[parent])
    if any(same == (other.action, normalise(other.content or "")) for other in siblings if other.failure is None):
        return None
    after = await environment.apply(state, step)
    found = tuple(Found(p.id, p.title, p.score) for p in after.passages)
    terminal = environment.ended(after)
    return replace(node, action=step.action, content=step.content, terminal=terminal, passages=found), after


def _reward(growth: Growth, node: int, environment: Environment, reward: RewardConfig) -> None:
    """Scores an answer node against the golden answers and backs the reward up."""
    answer = growth.nodes[node]
    if not environment.ended(growth.states[node]) or answer.failure is not None:
        return
    score = f1(answer.content, growth.question.golden_answers)
    growth.nodes[node] = replace(answer, prediction_f1=score)
    backup(growth, node, discounted(score, answer.depth, reward.alpha))


def backup(growth: Growth, node: int, reward: float) -> None:
    """Adds a reward and a visit to `node` and everything above it."""
    at: int | None = node
    while at is not None:
        growth.visits[at] += 1
        growth.rewards[at] += reward
        at = growth.nodes[at].parent


async def play(
    growth: Growth, fresh: list[int], environment: Environment, policy: Policy, reward: RewardConfig, seed: int
) -> None:
    """Plays one open node of `fresh` to its end, one child a step; the nodes stay in the tree."""
    while node := next((node for node in fresh if not growth.closed[node]), None):
        fresh = await expand(growth, node, 1, environment, policy, reward, seed)


def settle(growth: Growth, node: int) -> None:
    """Closes `node` if it has branched and all its children are closed, and so on upwards."""
    at: int | None = node
    while at is not None and growth.branched[at] and all(growth.closed[child] for child in growth.children[at]):
        growth.closed[at] = True
        at = growth.nodes[at].parent


def finished(growth: Growth, status: str) -> Tree:
    """The tree as a record, with visits and mean values in its nodes."""
    nodes = tuple(
        replace(node, visits=visits, value=total / visits if visits else None)
        for node, visits, total in zip(growth.nodes, growth.visits, growth.rewards, strict=True)
    )
    return Tree(TREE_FORMAT, growth.question, status, growth.usage, nodes)
