"""`steprag trees belief`: adds the policy's beliefs to finished trees, without a new search.

A tree's states are made again step by step, with the passages of the run's journal or of the index that it searched;
then the policy says at each state how likely the golden answer is (`steprag.agent.belief`). Scores are journalled, so
a killed run resumes.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from data_generation.generate import tools_told
from data_generation.replay import Replay
from indexes import open_retriever
from steprag.agent.belief import MOST_ANSWERS, believe, check_scoring
from steprag.agent.checkpoints import checked_profile
from steprag.agent.environment import Environment
from steprag.agent.open import OpenAgent, make_environment, open_agent
from steprag.agent.profiles import check_follows, check_made_by
from steprag.agent.retriever import Retriever
from steprag.agent.tools import specs_in
from steprag.batch.endpoints import asking
from steprag.batch.journal import JOURNAL, Journal, QuestionCalls
from steprag.batch.journalled import scorer_of
from steprag.batch.results import Place, Results, places_of, read_at
from steprag.batch.tree_results import TREES, trees_file
from steprag.batch.worklist import note_failures, pending, process_questions, report_spending, run_interruptible
from steprag.config.load import StageConfig, add_options, load_config, options_from, parse_arguments
from steprag.config.recipes import out_of
from steprag.config.sections import EpisodeConfig, PolicyConfig, Positive, PromptConfig, RetrieverConfig
from steprag.console.progress import say_next
from steprag.errors import PART_DONE, ConfigError, RequestError, quoted
from steprag.policy.budget import BudgetConfig, Spending, prices_of
from steprag.policy.open import model_identity
from steprag.policy.protocols import Scorer
from steprag.policy.scoring import refusal
from steprag.records.jsonl import file_hash, read_records
from steprag.runs.run import open_run, run_of
from steprag.tree import Failure, Node, Tree
from steprag.types import Question, State, Step


class BeliefConfig(StageConfig):
    """`steprag trees belief`. Prompts and episode are those of the run that made the trees, if its folder says."""

    policy: PolicyConfig = Field(default_factory=PolicyConfig)
    retriever: RetrieverConfig = Field(default_factory=RetrieverConfig)
    prompt: PromptConfig = Field(default_factory=PromptConfig)
    episode: EpisodeConfig = Field(default_factory=EpisodeConfig)
    budget: BudgetConfig = Field(default_factory=BudgetConfig)
    limit: Positive | None = Field(default=None, description="take the first so many trees only")

    @model_validator(mode="after")
    def _can_score(self) -> Self:
        if why := refusal(self.policy.engine):
            raise ValueError(why)
        return self


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="steprag trees belief", description="Adds to finished trees what the policy believes of the golden answer"
    )
    parser.add_argument("--trees", required=True, metavar="RUN", help="run folder of steprag generate, or its trees")
    parser.add_argument("--index", metavar="DIR|URL", help="the trees' index [the passages of the run's journal]")
    parser.add_argument("--out", metavar="RUN", help="new run folder: trees with beliefs, journal [runs/belief-RUN]")
    add_options(parser, BeliefConfig)
    given = parse_arguments(parser, argv)
    file = trees_file(given.trees)
    made_by = run_of(file, "config")
    kept = {section: made_by["config"][section] for section in ("prompt", "episode") if made_by}
    config = load_config(BeliefConfig, given.config, options_from(given), kept)
    run = add_beliefs(config, file, made_by, given.index, out_of(given, "belief", given.trees))
    return PART_DONE if run_interruptible(run) else 0


async def add_beliefs(config: BeliefConfig, file: Path, made_by: dict[str, Any], index: str | None, out: Path) -> int:
    """Writes the run folder `out`; returns how many trees failed. `made_by`: manifest of the run that grew the trees.

    Raises ConfigError where neither an index nor a journal has their passages.
    """
    journal = file.parent / JOURNAL
    if index is None and not journal.is_file():
        raise ConfigError(f"{file.parent} has no journal ({JOURNAL}); give the index that the trees searched")
    profile = checked_profile(config.prompt, config.policy).with_tools(specs_in(made_by))
    check_made_by(profile, made_by.get("identity", {}), file)
    trees = _Trees(file, config.limit)
    made_from = {"trees": file_hash(file), "policy": model_identity(config.policy)}
    belief = {**made_from, "episode": config.episode.identity}
    identity = {**made_by.get("identity", {}), "prompt": profile.identity, "belief": belief}
    async with _passages(index, journal, config, made_by) as passages_of:
        retriever = passages_of(trees.questions[0].id)
        environment = make_environment(profile, retriever, config.episode)
        with open_run(out, "belief", identity=identity, config=config.model_dump()) as run:
            run.save(grammar=profile.grammar.name, **tools_told(profile))
            believed = Results(run.path / "trees.jsonl", TREES)
            spending = Spending(config.budget, prices_of(config.policy))
            todo = pending(trees.questions, believed)
            with report_spending(run, trees.questions, believed, spending):
                if todo:
                    opened = open_agent(config, retriever, environment=environment)
                    async with opened as agent, Journal(run.path / JOURNAL, spending) as calls:

                        async def work(question: Question) -> Tree | Failure:
                            tree, mine = trees.tree(question.id), calls.question(question)
                            return await with_beliefs(tree, mine, agent, passages_of(question.id))

                        with asking(run, calls, policy=agent.policy):
                            await check_scoring(scorer_of(agent.policy))
                            await process_questions(
                                run, todo, work, results=believed, at_once=2 * config.policy.concurrency,
                                total=len(trees.questions), spending=spending, max_calls=trees.max_calls,
                                started_ids=calls.started_ids,
                            )  # fmt: skip
            say_next("pairs", run.path, "--label.name", "gain")
            return note_failures(run, believed)


async def with_beliefs(tree: Tree, calls: QuestionCalls, agent: OpenAgent, passages: Retriever) -> Tree | Failure:
    """The tree with a belief at every state that is not at its end, or why that failed."""
    environment = replace(agent.environment, retriever=calls.retriever(passages))
    check_follows(tree, environment.profile.grammar)
    try:
        told = await believed(tree, environment, calls.scorer(agent.policy))
    except RequestError as error:
        return Failure(tree.question.id, type(error).__name__, str(error))
    return replace(told, grammar=environment.profile.grammar.name)


async def believed(tree: Tree, environment: Environment, scorer: Scorer) -> Tree:
    """The tree with a belief at every state that is not at its end. Raises as `believe` and `states_of` do."""

    async def with_belief(node: Node, state: State | None) -> Node:
        if state is None or environment.ended(state):
            return node
        return replace(node, belief=await believe(environment, scorer, tree.question, state))

    states = await states_of(tree, environment)
    return replace(tree, nodes=tuple(await asyncio.gather(*map(with_belief, tree.nodes, states))))


async def states_of(tree: Tree, environment: Environment) -> list[State | None]:
    """The state at each node by id, None at refused ones. Raises ConfigError where a search finds other passages."""
    states: list[State | None] = []
    for node in tree.nodes:  # parents come before their children
        before = states[node.parent] if node.parent is not None else None
        if node.parent is None:
            states.append(environment.start(tree.question.question))
        elif node.failure or before is None:
            states.append(None)
        else:
            state = await environment.apply(before, Step(node.action or "", node.text, node.content or ""))
            if [passage.id for passage in state.passages] != [found.id for found in node.passages]:
                raise ConfigError(
                    f"question {quoted(tree.question.id)}: the search of node {node.id} finds other passages now; "
                    "give the index, episode.top_k and retriever keys that the trees were made with"
                )
            states.append(state)
    return states


class _Trees:
    """The trees of a file, each read when it is asked for; a gzipped file is read once, whole."""

    def __init__(self, path: Path, limit: int | None) -> None:
        zipped = path.suffix == ".gz"
        self._path = path
        self._read: dict[str, Tree] = {tree.question.id: tree for tree in read_records(path, Tree)} if zipped else {}
        self._places: dict[str, Place] = {} if zipped else {place.id: place for place in places_of(path, TREES)}
        ids = [*self._read, *self._places][:limit]
        if not ids:
            raise ConfigError(f"{path} holds no trees; run steprag generate first")
        self.questions = [self.tree(key).question for key in ids]

    @property
    def max_calls(self) -> int:
        """The scores that no tree exceeds: of every node, each answer."""
        read, places = self._read.values(), self._places.values()
        return MOST_ANSWERS * max((*(len(tree.nodes) for tree in read), *(place.counts["nodes"] for place in places)))

    def tree(self, question_id: str) -> Tree:
        """The tree of a question."""
        if question_id in self._read:
            return self._read[question_id]
        return read_at(self._places[question_id], self._path, Tree)


@asynccontextmanager
async def _passages(
    index: str | None, journal: Path, config: BeliefConfig, made_by: dict[str, Any]
) -> AsyncIterator[Callable[[str], Retriever]]:
    """For a question's id, where its passages come from: the index, or what the run's journal says it found."""
    if index is not None:
        async with aclosing(open_retriever(index, config.retriever)) as retriever:
            yield lambda _: retriever
        return
    fingerprint = str(made_by.get("identity", {}).get("index", ""))
    async with Journal(journal, reading=True) as calls:
        yield lambda question_id: Replay(calls, question_id, fingerprint)
