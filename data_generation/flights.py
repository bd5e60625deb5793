"""Flights: what a search does at one leaf, from sampling its children to backing their rewards up.

A flight only touches what is below its own leaf, so neither the tree nor its node ids depend on which reply comes
first. It samples the leaf's children, `siblings` in one request, and plays the first open one on to an answer, a
request a step; everything that was sampled stays in the tree.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from functools import partial

from data_generation.config import GenerateConfig
from data_generation.growth import Branch, Growth, Rule, backup, mark_pending, seed_of, settle, uct
from data_generation.values import VALUES, Fresh, Value, outcomes
from steprag.agent.belief import believe
from steprag.agent.environment import Environment
from steprag.agent.grammar import Grammar
from steprag.agent.judge import Judge
from steprag.errors import NotJournalled, StepFormatError
from steprag.gain import gains
from steprag.gold import holds_golden
from steprag.metrics import f1, guessable, normalise
from steprag.policy.client import Policy, Scorer
from steprag.tree import Node
from steprag.types import Completion, Found, Question, State, Step, Usage
from steprag.policy.protocols import Policy, Scorer
from steprag.types import (
    Completion,
    Found,
    Question,
    State,
    Step,
    Usage,
)
from steprag.tree import Node

RIGHT = 0.5
"""F1 from which an answer counts as right, where a tree is stopped or prolonged."""


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


def make_searcher(
    environment: Environment, policy: Policy, judge: Judge | None, config: GenerateConfig, scorer: Scorer | None = None
) -> Searcher:
    """The search that a recipe describes: UCT, and the value that `reward.name` names."""
    rule = partial(uct, exploration=config.search.exploration)
    return Searcher(environment, policy, rule, VALUES[config.reward.name](config, judge), config, scorer)


@dataclass(eq=False)
class Flight:
    """One leaf in flight. `created` in order of sampling; `valued`: branches whose reward is to be backed up."""

    leaf: Branch
    created: list[Branch] = field(default_factory=list)
    valued: list[tuple[Branch, float]] = field(default_factory=list)
    usage: Usage = Usage()


async def fly(jobs: list[Flight], growth: Growth, searcher: Searcher) -> None:
    """Explores the leaves at the same time and lands them in order. Raises what exploring raised, once all landed."""
    outcomes = await asyncio.gather(*(explore(job, growth, searcher) for job in jobs), return_exceptions=True)
    for job in jobs:
        land(job, growth, searcher)
    for branch in {branch for job in jobs for branch in _to_root(job.leaf)}:
        branch.busy = False
    for outcome in outcomes:
        if outcome is not None:
            raise outcome


def _to_root(branch: Branch | None) -> list[Branch]:
    path = []
    while branch is not None:
        path.append(branch)
        branch = branch.parent
    return path


async def explore(job: Flight, growth: Growth, searcher: Searcher) -> None:
    """Samples the leaf's children, plays one to its end, and values what came out.

    Where a replay's journal has no more calls, the job ends there; the answers that it came to count.
    """
    try:
        fresh = [job.leaf] if job.leaf.node.terminal else await expand(job, job.leaf, growth, searcher)
        first = list(fresh)
        while searcher.config.search.play and (open_ := next((b for b in fresh if not b.node.terminal), None)):
            fresh = await expand(job, open_, growth, searcher)
        await _believe(job, growth, searcher)
        await _value(job, first, growth, searcher)
    except NotJournalled:
        job.leaf.full = growth.short = True
        answers = _answers(job, growth)
        if not searcher.config.reward.judged:
            job.valued = outcomes(answers, searcher.config.reward.alpha)


async def expand(job: Flight, parent: Branch, growth: Growth, searcher: Searcher) -> list[Branch]:
    """Samples children of `parent` in one request and returns the new ones.

    A completion equal to a sibling (same action, same normalised content) is merged into it, before its query is
    searched.
    """
    search, environment = searcher.config.search, searcher.environment
    width = min(search.siblings or search.children, search.children - parent.sampled)
    observation = environment.observe(parent.state)
    seed = seed_of(searcher.config.seed, growth.question.id, parent)
    parent.sampled += width
    parent.full = parent.sampled >= search.children
    try:
        sample = await searcher.policy.sample(observation.messages, observation.allowed, n=width, seed=seed)
    except NotJournalled:
        parent.full = True
        raise
    job.usage += sample.usage
    parent.node = replace(parent.node, messages=observation.messages)
    parsed = [_parsed(parent.state, completion, environment) for completion in sample.completions]
    grammar = environment.profile.grammar
    kept = _without_twins(parent, list(zip(sample.completions, parsed, strict=True)), grammar)
    after = await asyncio.gather(*(_applied(parent.state, step, environment) for _, step in kept))
    usage, fresh = sample.usage, []
    for (completion, step), state in zip(kept, after, strict=True):
        fresh.append(_branch(parent, completion, step, state, usage, searcher, growth.question))
        usage = Usage()
    parent.children += fresh
    job.created += fresh
    return fresh


def _parsed(state: State, completion: Completion, environment: Environment) -> Step | StepFormatError:
    try:
        return environment.parse(state, completion)
    except StepFormatError as error:
        return error.with_traceback(None)  # which would keep the whole tree's frames alive


def _twin_key(action: str, content: str, grammar: Grammar) -> tuple[str, str]:
    """What equal steps share. Steps back are twins whatever their notes say: they lead to the same stack."""
    return action, "" if grammar.action(action).effect == "pop" else normalise(content)


def _without_twins(
    parent: Branch, sampled: list[tuple[Completion, Step | StepFormatError]], grammar: Grammar
) -> list[tuple[Completion, Step | StepFormatError]]:
    """Those that differ from the parent's children and from one another; refused completions are all kept."""
    seen = {
        _twin_key(child.node.action or "", child.node.content or "", grammar)
        for child in parent.children
        if not child.node.failure
    }
    kept = []
    for completion, step in sampled:
        if isinstance(step, Step):
            same = _twin_key(step.action, step.content, grammar)
            if same in seen:
                continue
            seen.add(same)
        kept.append((completion, step))
    return kept


async def _applied(state: State, step: Step | StepFormatError, environment: Environment) -> State:
    return await environment.apply(state, step) if isinstance(step, Step) else state


def _branch(
    parent: Branch,
    completion: Completion,
    step: Step | StepFormatError,
    state: State,
    usage: Usage,
    searcher: Searcher,
    question: Question,
) -> Branch:
    node = partial(Node, id=-1, parent=None, depth=parent.node.depth + 1, text=completion.text, usage=usage)
    if isinstance(step, StepFormatError):
        return Branch(node(terminal=True, failure=step.reason), state, parent, full=True, closed=True)
    found = tuple(Found(p.id, p.title, p.score) for p in state.passages)
    terminal = searcher.environment.ended(state)
    made = node(action=step.action, content=step.content, terminal=terminal, passages=found)
    if searcher.environment.profile.grammar.action(step.action).retrieves and not _guessable(question):
        texts = " ".join(f"{passage.title} {passage.text}" for passage in state.passages)
        made = replace(made, golden_found=holds_golden(texts, question.golden_answers))
    return Branch(made, state, parent, full=terminal, closed=terminal and not searcher.config.search.revisit)


def _guessable(question: Question) -> bool:
    return guessable(question.question, question.golden_answers)


async def _believe(job: Flight, growth: Growth, searcher: Searcher) -> None:
    """Asks what the policy believes at the states that the job came to, and at the leaf where nobody asked yet.

    Not on questions that can be guessed: there belief tells nothing, and each asking costs a prompt.
    """
    scorer, asked = searcher.scorer, growth.question
    if scorer is None or _guessable(asked):
        return
    everywhere = searcher.config.search.score_found
    open_ = [
        branch
        for branch in (job.leaf, *job.created)
        if not branch.node.terminal and branch.node.belief is None and (everywhere or not branch.state.passages)
    ]
    believed = await asyncio.gather(
        *(believe(searcher.environment, scorer, growth.question, branch.state) for branch in open_)
    )
    for branch, belief in zip(open_, believed, strict=True):
        branch.node = replace(branch.node, belief=belief)


async def _value(job: Flight, first: list[Branch], growth: Growth, searcher: Searcher) -> None:
    """Has the new nodes valued."""
    children = [branch for branch in first if branch.node.failure is None]
    grammar = searcher.environment.profile.grammar
    kept = [b for b in job.created if not b.node.failure and grammar.action(b.node.action or "").keeps]
    job.valued, usage = await searcher.value(growth.question, Fresh(children, _answers(job, growth), kept))
    job.usage += usage


def _gained(branch: Branch) -> bool:
    """Whether the belief rose since somebody last asked."""
    after, above = branch.node.belief, branch.parent
    while above is not None and above.node.belief is None:
        above = above.parent
    before = above.node.belief if above is not None else None
    return after is not None and before is not None and gains(after, before)


def _answers(job: Flight, growth: Growth) -> list[Branch]:
    """The answers among what the job created, scored."""
    for branch in job.created:
        if branch.node.terminal and branch.node.failure is None:
            score = f1(branch.node.content, growth.question.golden_answers)
            branch.node = replace(branch.node, prediction_f1=score)
    return [branch for branch in job.created if branch.node.prediction_f1 is not None]


def land(job: Flight, growth: Growth, searcher: Searcher) -> None:
    """Numbers what the job created, backs its rewards up, and closes what is done."""
    mark_pending(job.leaf, -1)
    growth.iterations += 1
    growth.usage += job.usage
    for branch in job.created:
        growth.number(branch)
        if branch.node.prediction_f1 is not None:
            right = branch.node.prediction_f1 >= RIGHT
            growth.right, growth.wrong = growth.right + right, growth.wrong + (not right)
        growth.gained = growth.gained or _gained(branch)
    for branch, reward in job.valued:
        backup(branch, reward)
    for branch in reversed(job.created):
        if not branch.node.terminal:
            settle(branch)
    if not job.leaf.node.terminal:
        settle(job.leaf)
