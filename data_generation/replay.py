"""`steprag trees replay`: rebuilds the trees of a run from its journal, without a model, an index or a network.

With the run's own configuration the trees are the same bytes. With another reward or stop rule they are what that rule
makes of the same replies; a search that wants more than the journal has ends there.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import defaultdict, deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data_generation.config import PRESETS, GenerateConfig
from data_generation.expand import make_searcher
from data_generation.generate import reserved_in, search_identity, search_one, tools_told
from data_generation.tally import Earlier, summarise
from steprag.agent.judge import Judge, prompt_of
from steprag.agent.open import make_environment
from steprag.agent.profiles import check_made_by, load_profile
from steprag.agent.tools import specs_in
from steprag.batch.journal import JOURNAL, Journal
from steprag.batch.journalled import SCORE, state_of
from steprag.batch.results import index_of
from steprag.batch.tree_results import tree_counts
from steprag.batch.worklist import FAILED
from steprag.config.load import add_options, leaves, load_config, options_from, parse_arguments
from steprag.config.recipes import out_of
from steprag.errors import ConfigError, DataError, NotJournalled, quoted
from steprag.policy.protocols import Policy, Scorer
from steprag.records.jsonl import dump_line, existing, written_whole
from steprag.runs.run import checked_manifest, open_run
from steprag.tree import Failure, Tree
from steprag.types import Completion, Message, Passage, Question, Sample, Usage


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag trees replay", description="Trees from a run's journal alone")
    parser.add_argument("--trees", required=True, metavar="RUN", help="run folder of steprag generate")
    parser.add_argument("--out", metavar="RUN", help="new run folder [runs/replay-RUN]")
    parser.add_argument("--after", nargs="+", default=[], metavar="RUN", help="what the run was given as --after")
    add_options(parser, GenerateConfig)
    given = parse_arguments(parser, argv)
    folder = existing(given.trees, "run folder")
    manifest = checked_manifest(folder, "identity", "config")
    if manifest.get("stage") != "generate" or not (folder / JOURNAL).is_file():
        raise ConfigError(f"{folder} is not a run of steprag generate with a journal ({JOURNAL})")
    earlier = Earlier([Path(run) for run in given.after]) if given.after else None
    if (earlier and earlier.identity) != manifest["identity"].get("after"):
        raise ConfigError(f"{folder} marked what earlier runs hold; give --after with the same runs as it was given")
    for section in {name.split(".")[0] for name, _ in leaves(GenerateConfig) if "." in name}:
        if not isinstance(manifest["config"].get(section, {}), dict):
            raise DataError(folder / "manifest.json", f"config.{section}: expected an object", remedy="restore it")
    asyncio.run(replay(_config(given, manifest["config"]), folder, manifest, out_of(given, "replay", folder), earlier))
    return 0


def _config(given: argparse.Namespace, made_with: dict[str, Any]) -> GenerateConfig:
    """The run's own configuration below what is asked for now; a preset asked for now goes before the run's keys."""
    options = options_from(given)
    preset = load_config(GenerateConfig, given.config, options).search.preset
    set_anew = PRESETS[preset] if preset != made_with.get("search", {}).get("preset", "default") else {}
    below = {
        section: {key: value for key, value in made_with.get(section, {}).items() if key not in keys}
        for section, keys in set_anew.items()
    }
    return load_config(GenerateConfig, given.config, options, {**made_with, **below})


async def replay(
    config: GenerateConfig, folder: Path, manifest: dict[str, Any], out: Path, earlier: Earlier | None
) -> None:
    """Writes the run folder `out` from the calls of `folder`'s journal. `manifest` is that run's, `earlier` its
    `--after`. Raises ConfigError where the journal lacks what the reward wants, and where its prompts were others.
    """
    of = manifest["identity"]
    profile = load_profile(config.prompt.profile, config.prompt.examples).with_tools(specs_in(manifest))
    profile = replace(profile, reserved=reserved_in(manifest))
    check_made_by(profile, of, folder)
    async with Journal(folder / JOURNAL, reading=True) as journal:
        if config.reward.judged and "judge" not in journal.roles:
            raise ConfigError(f"reward.name {config.reward.name}: the journal of {folder} has no call of a judge")
        if config.search.score and SCORE not in journal.roles:
            raise ConfigError(f"search.score: the journal of {folder} has no scores; steprag trees belief adds them")
        decides = {"episode": config.episode.identity, "limit": config.limit, "calls": journal.spending.usage.calls}
        identity = {**of, **search_identity(config), **decides, "replay_of": of}
        with open_run(out, "generate", identity=identity, config=config.model_dump()) as run:
            run.save(grammar=profile.grammar.name, **tools_told(profile))

            async def rebuilt(question: Question) -> Tree | Failure:
                source = Replay(journal, question.id, str(of["index"]))
                environment = make_environment(profile, source, config.episode)
                judging = source.policy("judge", greedy=config.judge.temperature == 0)
                words = prompt_of(config.judge)
                judge = Judge(judging, config.reward.gold, words) if config.reward.judged else None
                scorer = source.scorer() if config.search.score else None
                searcher = make_searcher(environment, source.policy("policy"), judge, config, scorer)
                tree = await search_one(question, searcher)
                return earlier.mark(tree) if earlier and isinstance(tree, Tree) else tree

            file, counts = run.path / "trees.jsonl", []
            index_of(file).unlink(missing_ok=True)
            with written_whole(file) as trees, written_whole(run.path / FAILED) as failures:
                for question in journal.questions()[: config.limit]:
                    result = await rebuilt(question)
                    (trees if isinstance(result, Tree) else failures).write(dump_line(result) + "\n")
                    if isinstance(result, Tree):
                        counts.append(tree_counts(result))
            run.set(spent=journal.spending.summary())
            summarise(run, counts)


class Replay:
    """A question's calls as a policy and a retriever without network.

    A state's samples are handed out in the order in which they were paid for, however they are asked for, so other
    stop rules and rewards rebuild other trees from the same calls. NotJournalled where the journal has no more.
    """

    def __init__(self, journal: Journal, question_id: str, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self._samples: dict[tuple[str, str], deque[tuple[Completion, Usage]]] = defaultdict(deque)
        for (role, state, _, _), sample in journal.calls_of(question_id):
            usage = sample.usage
            for completion in sample.completions:
                self._samples[role, state].append((completion, usage))
                usage = Usage()
        self._found = journal.searches_of(question_id)

    def policy(self, role: str, *, greedy: bool = False) -> Policy:
        """The policy of that role (policy or judge); both draw on the same journal. `greedy`: it was not asked again
        for a reply that could not be read; earlier versions asked.
        """
        return _ReplayCalls(self._samples, role, greedy)

    def scorer(self) -> Scorer:
        """The policy's scores."""
        return _ReplayCalls(self._samples, SCORE)

    async def ready(self) -> None:
        """There is nothing to load."""

    async def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
        """The journal's passages of the query. Raises NotJournalled where it was not made with that `top_k`."""
        if (query, top_k) not in self._found:
            raise NotJournalled(f"the journal has no search for {quoted(query)} with top_k {top_k}")
        return self._found[query, top_k]

    async def aclose(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True)
class _ReplayCalls:
    """The calls of one role. `greedy`: as `Replay.policy` says."""

    samples: dict[tuple[str, str], deque[tuple[Completion, Usage]]]
    role: str
    greedy: bool = False

    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        left = self.samples.get((self.role, state_of(messages, allowed)))
        if not left:
            raise NotJournalled(f"the journal has no more {self.role} calls for this state")
        taken = [left.popleft() for _ in range(min(n, len(left)))]
        usage = sum((usage for _, usage in taken), Usage())
        return Sample(tuple(completion for completion, _ in taken), usage)

    def repeats(self, messages: tuple[Message, ...], allowed: tuple[str, ...]) -> bool:
        """Whether it was asked for no more, for it was greedy."""
        return self.greedy and not self.samples.get((self.role, state_of(messages, allowed)))

    async def score(self, messages: tuple[Message, ...], text: str) -> Sample:
        """What was paid for once; asked again, it is the same."""
        told = self.samples.get((self.role, state_of(messages, (text,))))
        if not told:
            raise NotJournalled("the journal has no score for this state")
        return Sample((told[0][0],), told[0][1])
