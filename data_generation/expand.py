"""Expansion: children of a node, sampled from the policy in one request; equal ones are merged."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

from data_generation.config import GenerateConfig
from data_generation.growth import Rule, SearchNode, SearchTree, Simulation, seed_of, uct
from data_generation.values import VALUES, Value
from steprag.agent.environment import Environment
from steprag.agent.grammar import Grammar
from steprag.agent.judge import Judge
from steprag.errors import StepFormatError
from steprag.policy.protocols import Policy, Scorer
from steprag.scores.gold import holds_golden
from steprag.scores.metrics import guessable, normalise
from steprag.tree import Node
from steprag.types import Completion, Found, Question, State, Step, Usage

Parsed = tuple[Completion, Step | StepFormatError]
"""A completion, and the step that it is or why it is none."""


@dataclass(frozen=True)
class Searcher:
    """What a search works with. `rule` says which child is visited next, `value` what new nodes are worth.

    `scorer`: only where the policy's belief is asked at every state.
    """

    environment: Environment
    policy: Policy
    rule: Rule
    value: Value
    config: GenerateConfig
    scorer: Scorer | None = None

    @property
    def grammar(self) -> Grammar:
        """The grammar of the steps."""
        return self.environment.profile.grammar


def make_searcher(
    environment: Environment, policy: Policy, judge: Judge | None, config: GenerateConfig, scorer: Scorer | None = None
) -> Searcher:
    """The search that a recipe describes: UCT, and the value that `reward.name` names."""
    rule = partial(uct, exploration=config.search.exploration)
    value = partial(VALUES[config.reward.name], config=config, judge=judge)
    return Searcher(environment, policy, rule, value, config, scorer)


async def expand(simulation: Simulation, parent: SearchNode, tree: SearchTree, searcher: Searcher) -> list[SearchNode]:
    """Samples children of `parent` in one request and returns the new ones.

    A completion equal to a sibling (same action, same normalised content) is merged into it, before its query is
    searched.
    """
    search, environment = searcher.config.search, searcher.environment
    width = min(search.siblings or search.children, search.children - parent.sampled)
    observation = environment.observe(parent.state)
    seed = seed_of(searcher.config.seed, tree.question.id, parent)
    parent.sampled += width
    parent.full = True  # should the request fail, there is nothing more to be had here
    sample = await searcher.policy.sample(observation.messages, observation.allowed, n=width, seed=seed)
    parent.full = parent.sampled >= search.children
    simulation.usage += sample.usage
    parent.record = parent.with_facts(messages=observation.messages)
    parsed = [(one, _parsed(parent.state, one, observation.allowed, environment)) for one in sample.completions]
    kept = _without_duplicates(parent, parsed, searcher.grammar)
    after = await _applied(parent.state, [step for _, step in kept], environment)
    usage, fresh = sample.usage, []
    for one, state in zip(kept, after, strict=True):
        fresh.append(_child(parent, one, state, usage, searcher, tree.question))
        usage = Usage()
    parent.children += fresh
    simulation.created += fresh
    return fresh


def _parsed(
    state: State, completion: Completion, allowed: tuple[str, ...], environment: Environment
) -> Step | StepFormatError:
    try:
        return environment.parse(state, completion, allowed)
    except StepFormatError as error:
        return error.with_traceback(None)  # which would keep the whole tree's frames alive


def _identity(action: str, content: str, grammar: Grammar) -> tuple[str, str]:
    """What equal steps share. Steps back are equal whatever their notes say: they lead to the same stack."""
    return action, "" if grammar.action(action).effect == "pop" else normalise(content)


def _without_duplicates(parent: SearchNode, sampled: list[Parsed], grammar: Grammar) -> list[Parsed]:
    """Those that differ from the parent's children and from one another; refused completions are all kept."""
    records = [child.record for child in parent.children if not child.record.failure]
    seen = {_identity(record.action or "", record.content or "", grammar) for record in records}
    kept = []
    for completion, step in sampled:
        if isinstance(step, Step):
            same = _identity(step.action, step.content, grammar)
            if same in seen:
                continue
            seen.add(same)
        kept.append((completion, step))
    return kept


async def _applied(state: State, steps: list[Step | StepFormatError], environment: Environment) -> list[State]:
    """The state after each step, `state` after none. Several searches are made at the same time."""
    grammar, taken = environment.profile.grammar, [step for step in steps if isinstance(step, Step)]
    applied = (environment.apply(state, step) for step in taken)
    searches = sum(grammar.action(step.action).retrieves for step in taken)
    after = iter(await asyncio.gather(*applied) if searches > 1 else [await each for each in applied])
    return [next(after) if isinstance(step, Step) else state for step in steps]


def _child(
    parent: SearchNode, parsed: Parsed, state: State, usage: Usage, searcher: Searcher, question: Question
) -> SearchNode:
    completion, step = parsed
    record = partial(Node, id=-1, parent=None, depth=parent.record.depth + 1, text=completion.text, usage=usage,
                     reasoning=len(completion.reasoning) or None)  # fmt: skip
    if isinstance(step, StepFormatError):
        return SearchNode(record(terminal=True, failure=step.reason), state, parent, full=True, closed=True)
    found = tuple(Found(p.id, p.title, p.score) for p in state.passages)
    terminal = searcher.environment.ended(state)
    golden, holds = question.golden_answers, None
    if searcher.grammar.action(step.action).retrieves and not guessable(question.question, golden):
        texts = " ".join(f"{passage.title} {passage.text}" for passage in state.passages)
        holds = holds_golden(texts, golden)
    made = record(action=step.action, content=step.content, terminal=terminal, passages=found, golden_found=holds)
    return SearchNode(made, state, parent, full=terminal, closed=terminal and not searcher.config.search.revisit)
