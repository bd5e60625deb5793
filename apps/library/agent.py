"""`Agent`: answers, trees and pairs in plain calls, all by the one agent (`open_agent`) and one engine."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from apps.library.background import Held, run
from apps.library.index import Index, dotted
from apps.library.shown import Answer, ShownTree
from data_generation.config import GenerateConfig
from data_generation.generate import search_one, searcher_for
from inference.ask import played
from inference.best_of import critic_of
from inference.config import InferConfig, config_of, support_for
from preference.config import PairsStageConfig
from preference.filters import checks, content_reader
from preference.pairs import build_pairs
from preference.rewards import Estimate as Estimate
from preference.rewards import rewards
from steprag.agent.belief import check_scoring
from steprag.agent.checkpoints import checked_profile
from steprag.agent.citations import grounds_of
from steprag.agent.critic import CriticFiles
from steprag.agent.facts import facts_about
from steprag.agent.open import OpenAgent, make_environment, open_agent
from steprag.agent.profiles import grammar_of_tree
from steprag.agent.retriever import Retriever
from steprag.batch.database import IN_MEMORY
from steprag.batch.journal import Journal
from steprag.batch.journalled import scorer_of
from steprag.config.load import OPTION, StageConfig, leaves, load_config
from steprag.config.sections import EXTRACTIVE
from steprag.errors import ConfigError, RequestError, nearest, quoted
from steprag.policy.budget import Spending, prices_of
from steprag.policy.client import OpenAIPolicy
from steprag.policy.open import Model
from steprag.records.jsonl import dump_line, line_hash
from steprag.records.training_rows import Pair
from steprag.tree import Failure, Tree
from steprag.types import Question

Config = TypeVar("Config", bound=StageConfig)
SECTIONS = ("policy", "prompt", "episode", "judge", "search", "reward", "tree", "budget", "label", "pairs", "filters")
KEYS = ("seed", "critic", "candidates")
"""Keys beside the sections."""


@dataclass(frozen=True)
class _Players:
    """Who plays, on one engine: `grows` samples the steps of trees, `asks` those of answers, as its keys say."""

    grows: OpenAgent
    asks: OpenAgent
    journal: Journal
    critic: CriticFiles | None


class Agent:
    """The agent over an index. Its engine starts with the first question, and ends with the `with` block, with `close`,
    or with the program. What it asked once it remembers: the same question costs nothing again.
    """

    def __init__(self, index: Index | str | Path, model: str | Path | None = None, **keys: Any) -> None:
        """`model`: as `steprag ask --model`; without a model, the embedded one with its trained adapter, and over an
        index of anything but Atlas, for `ask`, the documents' own sentences.

        `keys`: those of `steprag ask`, `generate` and `pairs`, sections parted by two underscores
        (`search__rollouts=6`); a key of `policy` needs no section (`adapter="runs/dpo"`, `base_url=…`). Answers are
        greedy unless `temperature` is given; `budget__usd` bounds all that this agent does. Raises ConfigError.
        """
        given = _keys(keys | ({} if model is None else {"model": model}))
        self.index = index if isinstance(index, Index) else Index(index)
        self._asks = _config(InferConfig, given, str(self.index.place))
        self._grows = _config(GenerateConfig, given, tell=False)
        own = {key for key, _ in leaves(PairsStageConfig)}
        self._makes = load_config(PairsStageConfig, None, {key: value for key, value in given.items() if key in own})
        self._retriever: Retriever | None = None
        self._players, self._reader = Held(self._opening), Held(self._reading)

    def ask(self, question: str) -> Answer:
        """One episode. Raises PolicyError, RetrieverError, and what starting the engine raises."""
        reads = self._asks.policy.engine == EXTRACTIVE
        return run(self._ask(self._ready(self._reader if reads else self._players), question))

    def tree(self, question: str | Question, *golden: str) -> ShownTree:
        """The finished search of a question. `golden`: its right answers, where it is a text; a search without them
        knows no right end. Raises RequestError where a request failed for good.
        """
        asked = question if isinstance(question, Question) else Question(question, question, golden)
        return run(self._tree(self._ready(self._players), asked))

    def pairs(self, trees: Tree | Iterable[Tree]) -> list[Pair]:
        """The pairs of trees, by the keys of `label`, `pairs` and `filters`. Without an engine. What `steprag pairs`
        weighs over a whole folder (duplicates, contradictions, balance, tokens) is left to it.
        """
        return [pair for tree in ([trees] if isinstance(trees, Tree) else trees) for pair in self._pairs_of(tree)]

    def close(self) -> None:
        """Stops the engine, if it was started here. The index stays open."""
        self._players.close()
        self._reader.close()

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Agent({str(self.index.place)!r}, {self._asks.policy.model!r})"

    def _ready(self, players: Held[_Players]) -> _Players:
        retriever = self.index.retriever()
        if retriever is not self._retriever:  # the index was closed since
            self.close()
        self._retriever = retriever
        return players.value()

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[_Players]:
        """Who answers without an engine."""
        assert self._retriever is not None
        async with open_agent(self._asks, self._retriever) as agent, Journal(IN_MEMORY) as journal:
            yield _Players(agent, agent, journal, None)

    @asynccontextmanager
    async def _opening(self) -> AsyncIterator[_Players]:
        judge = self._grows.judge if self._grows.reward.judged else None
        profile = checked_profile(self._grows.prompt, self._grows.policy)
        assert self._retriever is not None
        environment = make_environment(profile, self._retriever, self._grows.episode)
        spending = Spending(self._grows.budget, prices_of(self._grows.policy, judge))
        opened = open_agent(self._grows, self._retriever, environment=environment, judge=judge)
        async with opened as agent, Journal(IN_MEMORY, spending) as journal:
            if self._grows.search.score:
                await check_scoring(scorer_of(agent.policy))
            assert isinstance(agent.policy.policy, OpenAIPolicy)
            async with agent.policy.policy.beside(self._asks.policy, environment.profile.grammar) as greedy:
                asks = replace(agent, policy=Model(greedy, agent.policy.gate))
                yield _Players(agent, asks, journal, critic_of(self._asks, profile))

    async def _ask(self, players: _Players, question: str) -> Answer:
        episode = await played(question, self._asks, players.asks, players.journal, players.critic)
        grounds = grounds_of(episode.state, players.asks.environment, support_for(str(self.index.place)))
        return Answer(episode, grounds.found, grounds.cites, grounds.lacks)

    async def _tree(self, players: _Players, question: Question) -> ShownTree:
        calls = players.journal.question(question, live=True)
        grown = await search_one(question, searcher_for(calls, self._grows, players.grows))
        if isinstance(grown, Failure):
            raise RequestError(f"{grown.reason}: {grown.detail}")
        return ShownTree(**vars(grown))

    def _pairs_of(self, tree: Tree) -> list[Pair]:
        config, grammar = self._makes, grammar_of_tree(tree, {})
        facts = facts_about(tree, grammar, grounded=config.label.grounded)
        made = build_pairs(facts.tree, line_hash(dump_line(tree)), rewards(facts, config.label), config.pairs)
        passing = checks(config.filters, grammar, content_reader(grammar))
        return [pair for pair in made if all(check.passes(pair) for check in passing)]


def _keys(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments as dotted keys. Raises ConfigError for one that no section has."""
    leaved = {key for cls in (InferConfig, GenerateConfig, PairsStageConfig) for key, _ in leaves(cls)}
    known = {key for key in leaved if key.partition(".")[0] in (SECTIONS if "." in key else KEYS)}
    keys = {f"policy.{key}" if f"policy.{key}" in known else key: value for key, value in dotted(given).items()}
    for key in keys:
        if key not in known:
            raise ConfigError(f"Agent: unknown key {quoted(key)}{nearest(key, sorted(known))}")
    return keys


def _config(cls: type[Config], given: dict[str, Any], index: str | None = None, tell: bool = True) -> Config:
    """A command's configuration with those of the keys that it has, as if they had been typed."""
    own = {f"{OPTION}{key}": given[key] for key, _ in leaves(cls) if key in given}
    return config_of(cls, Namespace(config=None, **own), index=index, tell=tell)
