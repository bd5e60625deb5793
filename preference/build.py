"""`steprag pairs`: trees to pairs and what else they teach, split by question into train and validation."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from preference.calibration import Calibration
from preference.config import PairsStageConfig
from preference.ends import ends
from preference.exchange.push import add_push_option, push_if_asked
from preference.grounds import grounded
from preference.labels import build_labels, build_rankings
from preference.leakage import check_folder
from preference.pairs import build_pairs
from preference.pairs_folder import PairsFolder
from preference.report import generation_facts, summary, write_report
from preference.reward_diagnostics import Credit
from preference.rewards import Rewards, outcomes, rewards, spre
from preference.rule_counts import Funnel
from preference.supervised import build_trajectories
from steprag.agent.grammar import Grammar
from steprag.agent.profiles import grammar_of
from steprag.cli import guarded
from steprag.config import add_options, config_from, parse_arguments
from steprag.errors import ConfigError
from steprag.files import existing, file_hash, from_dict, line_hash, parse_line, read_lines
from steprag.metrics import guessable
from steprag.progress import say
from steprag.runs import open_run, run_of
from steprag.tree import Tree
from steprag.types import Usage


def main(argv: list[str]) -> int:
    """Runs `steprag pairs`; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="steprag pairs", description="Trees to preference pairs and supervised steps."
    )
    parser.add_argument(
        "--trees", required=True, nargs="+", metavar="RUN",
        help="run folders of steprag generate, or files like trees.jsonl: all rounds or parts that make one data set",
    )  # fmt: skip
    parser.add_argument("--out", metavar="DIR", help="where the pairs go [RUN/pairs, of the first]")
    add_push_option(parser)
    add_options(parser, PairsStageConfig)
    arguments = parse_arguments(parser, argv)
    config = config_from(PairsStageConfig, arguments)
    trees = [trees_file(given) for given in arguments.trees]
    out = Path(arguments.out) if arguments.out else trees[0].parent / "pairs"
    build(config, trees, out)
    push_if_asked(arguments, out)
    return 0


def trees_file(given: str) -> Path:
    """The trees of a run folder, or the file itself. Raises ConfigError."""
    found = existing(given, "trees")
    return existing(found / "trees.jsonl", "trees of the run") if found.is_dir() else found


def build(config: PairsStageConfig, trees: list[Path], out: Path) -> None:
    """Writes the pairs folder `out`: the products, questions.jsonl, report.json, README.md, plots and the manifest.

    Raises ConfigError where the trees were made by different prompts, or where there are none.
    """
    sources = manifests_of(trees)
    prompt, grammar = one_prompt(trees, sources)
    identity = {"trees": [file_hash(file) for file in trees], **config.identity}
    with open_run(out, "pairs", identity=identity, config=config.model_dump()) as run:
        funnel, credit, calibration = Funnel(), Credit(config.reward, grammar), Calibration()
        totals: Counter[str] = Counter()
        usage = Usage()
        with PairsFolder(out, config, config.products, grammar, funnel) as folder:
            for tree, tree_hash in read_trees(*trees):
                totals["trees"] += 1
                totals["nodes"] += len(tree.nodes)
                usage += tree.usage
                calibration.add(tree)
                if config.reward.grounded:
                    tree = grounded(tree, grammar)
                estimates = rewards(tree, config.reward, grammar)
                credit.add(tree, estimates if config.reward.name == "spre" else spre(tree, config.reward))
                lucky = guessable(tree.question.question, tree.question.golden_answers)
                totals["guessable"] += lucky
                if config.guessable == "keep" or not lucky:
                    _add(folder, tree, tree_hash, estimates, config, grammar, funnel)
            if not totals["trees"]:
                raise ConfigError(f"{', '.join(map(str, trees))} holds no trees; run steprag generate first")
            stats = folder.finish()
            counts = {**totals, **folder.counts, **{f"pairs.action.{k}": n for k, n in stats["actions"].items()}}
            write_report(
                folder,
                config,
                {
                    "counts": dict(counts),
                    "source": {
                        "runs": [generation_facts(source) for source in sources],
                        "usage": asdict(usage),
                        "question_sources": dict(folder.sources.most_common()),
                    },
                    "prompt": prompt,
                    "rules": funnel.rows(),
                    "pairs": stats,
                    "credit": credit.report(),
                    "calibration": calibration.report(),
                },
            )
        run.set(counts=dict(counts), prompt=prompt)
        if config.leakage.against:
            check_folder(out, config.leakage)
    say(summary("pairs", out))
    if "pairs" in config.products and not folder.counts["pairs.train"]:
        say("pairs: no pair to train on; the rules and filters above say why: search more, hotter, or ask for less")


def manifests_of(trees: list[Path]) -> list[dict[str, Any]]:
    """The manifest of the run that each file of trees lies in; empty where it lies in none."""
    return [run_of(file) for file in trees]


def one_prompt(trees: list[Path], sources: list[dict[str, Any]]) -> tuple[Any, Grammar]:
    """The identity of the prompts that trees were made by, None where no manifest tells, and their grammar, by default
    the base grammar. `sources`: as `manifests_of`. Raises ConfigError where two manifests tell different ones.
    """
    told = [(file, source) for file, source in zip(trees, sources, strict=True) if source]
    prompts = [(file, prompt) for file, source in told if (prompt := source.get("identity", {}).get("prompt"))]
    grammars = [(file, grammar_of(source)) for file, source in told]
    for known in (prompts, grammars):
        for file, of in known:
            if of != known[0][1]:
                raise ConfigError(
                    f"{known[0][0]} and {file} were made by different prompts; give each a pairs folder of its own"
                )
    return prompts[0][1] if prompts else None, grammars[0][1] if grammars else grammar_of({})


def read_trees(*files: Path) -> Iterator[tuple[Tree, str]]:
    """Each tree with the hash of its line, streamed. Raises DataError with file and line."""
    for path in files:
        for number, line in read_lines(path):
            yield from_dict(Tree, parse_line(line, path, number), path, number), line_hash(line)


def _add(
    folder: PairsFolder,
    tree: Tree,
    tree_hash: str,
    estimates: Rewards,
    config: PairsStageConfig,
    grammar: Grammar,
    funnel: Funnel,
) -> None:
    """Every product that is asked for."""
    made: dict[str, Any] = {
        "pairs": lambda: build_pairs(tree, tree_hash, estimates, config.pairs, funnel),
        "sft": lambda: build_trajectories(
            tree,
            tree_hash,
            outcomes(tree, config.reward),
            estimates,
            config.sft,
            partial(folder.exemplary, tree),
            ends(tree, config.sft.partial, grammar),
            grammar=grammar,
        ),  # fmt: skip
        "steps": lambda: build_labels(tree, tree_hash, estimates),
        "rankings": lambda: build_rankings(tree, tree_hash, estimates),
    }
    for product in config.products:
        folder.add(tree.question, made[product]())


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
