"""`steprag replay`: rebuilds the trees of a run from its journal, without a model, an index or a network.

With the run's own configuration the trees are the same bytes. With another reward or stop rule they are what that rule
makes of the same replies; a search that wants more than the journal has ends there.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from data_generation.config import GenerateConfig
from data_generation.generate import search_identity, search_one, summarise
from data_generation.search import Searcher
from steprag.cli import guarded
from steprag.config import add_options, load_config, options_from, parse_arguments
from steprag.environment import Environment
from steprag.errors import ConfigError
from steprag.files import existing, write_records
from steprag.journal import JOURNAL, Journal, Replay
from steprag.judge import Judge
from steprag.prompts import load_profile
from steprag.runs import open_run, read_manifest
from steprag.types import Failure, Question, Tree


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag replay", description="Trees from a run's journal alone")
    parser.add_argument("--trees", required=True, metavar="RUN", help="run folder of steprag generate")
    parser.add_argument("--out", required=True, metavar="RUN", help="new run folder")
    add_options(parser, GenerateConfig)
    given = parse_arguments(parser, argv)
    folder = existing(given.trees, "run folder")
    manifest = read_manifest(folder)
    if manifest.get("stage") != "generate" or not (folder / JOURNAL).is_file():
        raise ConfigError(f"{folder} is not a run of steprag generate with a journal ({JOURNAL})")
    config = load_config(GenerateConfig, given.config, {**_flat(manifest["config"]), **options_from(given)})
    return asyncio.run(replay(config, folder, manifest["identity"], Path(given.out)))


def _flat(values: dict[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


async def replay(config: GenerateConfig, folder: Path, of: dict[str, object], out: Path) -> int:
    profile = load_profile(config.prompt.profile, config.prompt.examples)
    identity = {**of, **search_identity(config), "replay_of": of}
    with open_run(out, "generate", identity=identity, config=config.model_dump()) as run:
        async with Journal(folder / JOURNAL, reading=True) as journal:

            async def rebuilt(question: Question) -> Tree | Failure:
                source = Replay(journal, question.id, str(of["index"]))
                environment = Environment(profile, source, config.retriever.top_k, config.search.depth)
                judge = Judge(source.policy("judge"), config.reward.gold) if config.reward.judged else None
                return await search_one(question, Searcher(environment, source.policy("policy"), judge, config))

            results = [await rebuilt(question) for question in journal.questions()[: config.limit]]
            write_records(run.path / "trees.jsonl", [tree for tree in results if isinstance(tree, Tree)])
            write_records(run.path / "failures.jsonl", [failed for failed in results if isinstance(failed, Failure)])
            summarise(run, run.path / "trees.jsonl", journal.spending)
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
