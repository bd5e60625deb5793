"""`steprag pairs`: trees to pairs and what else they teach, split by question into train and validation."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from preference.answer_searches import answer_searches
from preference.config import NO_REWARD, PairsStageConfig
from preference.labels.estimates import outcomes
from preference.pairs import build_pairs, prompts
from preference.pairs_folder import SPLITS, PairsFolder, add_push_option, made_folder, push_if_asked
from preference.report.card import generation_facts
from preference.report.reward_diagnostics import Calibration, RewardDiagnostics
from preference.rewards import rewards
from preference.supervised import build_labels, build_rankings, build_trajectories
from steprag.agent.chained import LEVELS, levels
from steprag.agent.compliance import Refusals, refusals_told
from steprag.agent.facts import Facts, facts_about, solved, without_luck
from steprag.agent.grammar import Grammar
from steprag.agent.profiles import check_follows, grammar_of
from steprag.agent.retriever import PLACES
from steprag.batch.tree_results import said_by, trees_file
from steprag.config.load import PREFIX, add_options, config_from, parse_arguments
from steprag.config.recipes import out_beside
from steprag.console.progress import say, say_next
from steprag.errors import PART_DONE, ConfigError, counted
from steprag.records.jsonl import file_hash, from_dict, line_hash, parse_line, read_lines
from steprag.runs.run import add_overwrite_option, open_run, run_of
from steprag.tree import Tree
from steprag.types import Usage

LABELS = {
    "gold": "marked passages (gold)",
    "cover": "chained match (cover), since no passage is marked,",
    "answers": "right and wrong answers, since no passage is marked and the answer can be guessed,",
}
"""What label `evidence` says of a tree, by the label that it settles on."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="steprag pairs", description="Trees to preference pairs and supervised steps."
    )
    parser.add_argument(
        "--trees", required=True, nargs="+", metavar="RUN",
        help="run folders of steprag generate, or files like trees.jsonl: all rounds or parts that make one data set",
    )  # fmt: skip
    parser.add_argument("--out", metavar="DIR", help="where the pairs go [RUN/pairs of the first, or runs/pairs-FILE]")
    parser.add_argument(
        "--index", metavar="INDEX",
        help=f"{PLACES}: chained match also asks it for question and golden answer, once a question",
    )  # fmt: skip
    add_overwrite_option(parser)
    add_push_option(parser)
    add_options(parser, PairsStageConfig)
    _check_reward_keys(argv)
    arguments = parse_arguments(parser, argv)
    config = config_from(PairsStageConfig, arguments)
    trees = [trees_file(given) for given in arguments.trees]
    out = out_beside(arguments, Path(arguments.trees[0]), "pairs")
    made = build(config, trees, out, arguments.index, arguments.overwrite)
    push_if_asked(arguments, out)
    return 0 if made else PART_DONE


def _check_reward_keys(argv: list[str]) -> None:
    """`reward` was the name of `label` here. Options are refused; a variable may be meant for the search."""
    if any(argument.startswith("--reward.") for argument in argv):
        raise ConfigError(NO_REWARD)
    if named := [name for name in os.environ if name.startswith(f"{PREFIX}REWARD__")]:
        say(f"pairs: ${named[0]} is not read: {NO_REWARD}")


def build(
    config: PairsStageConfig, trees: list[Path], out: Path, index: str | None = None, overwrite: bool | None = None
) -> bool:
    """Writes the pairs folder `out`: the products, questions.jsonl, report.json, README.md, plots and the manifest.
    Returns whether a product holds anything. `index`: what chained match may search.

    Raises ConfigError where the trees were made by different prompts, where there are none, or where the label searches
    no index.
    """
    sources = [run_of(file) for file in trees]
    prompt, grammar = one_prompt(trees, sources)
    _check_bound(config.label.unpaid_from, sources)
    with (
        answer_searches(index, config) as searches,
        open_run(
            out,
            "pairs",
            identity={"trees": [*map(file_hash, trees)], **config.identity, **searches.identity},
            config=config.model_dump(),
            overwrite=overwrite,
        ) as run,
        made_folder("pairs", run, config, config.products, grammar, prompt) as folder,
    ):  # fmt: skip
        diagnostics, calibration, usage, refusals = RewardDiagnostics(), Calibration(), Usage(), Refusals()
        idle = Counter[str]()
        for facts, tree_hash in searches.chain_all(_facts(trees, grammar)):
            usage += facts.tree.usage
            calibration.add(facts)
            refusals.add(said_by(facts.tree), sum(node.reasoning or 0 for node in facts.tree.nodes))
            idle[_add(folder, facts, tree_hash, config, diagnostics)] += 1
        if not folder.counts["trees"]:
            raise ConfigError(f"{', '.join(map(str, trees))} holds no trees; run steprag generate first")
        folder.facts |= {
            "label": label_facts(config, folder.counts, searches.failed),
            "source": {
                "runs": [generation_facts(source) for source in sources],
                "usage": usage.shown,
                "question_sources": dict(folder.sources.most_common()),
            },
            "credit": diagnostics.report(),
            "calibration": calibration.report(),
        }
    if warning := refusals_told(refusals.counts, refusals.first, refusals.reasoning):
        say(f"pairs: {warning}")
    elif "pairs" in config.products and not folder.counts["pairs.train"]:
        say(f"pairs: no pair to train on: {_why_none(config.label.name, idle)}")
    train = {"pairs": ("train", out), "sft": ("train", out, "--stage", "sft")}
    say_next(*next((words for kind, words in train.items() if folder.counts[f"{kind}.train"]), ("view", out)))
    return any(folder.counts[f"{product}.{split}"] for product in config.products for split in SPLITS)


def _check_bound(unpaid_from: int | None, sources: list[dict[str, Any]]) -> None:
    """Says where the searches forced answers at another depth: two steps before their bound a search, whose evidence
    is a step too, no longer fits.
    """
    for source in sources:
        depth = generation_facts(source).get("episode", {}).get("depth")
        if unpaid_from and isinstance(depth, int) and (depth - 1) // 2 != unpaid_from // 2:
            say(f"pairs: the search's bound was {depth} steps; give --label.unpaid_from {depth - 1}, not {unpaid_from}")


def _why_none(label: str, idle: Counter[str]) -> str:
    """Why no pair came of so many trees, by what kept them from any (`_add`)."""
    trees = counted(sum(idle.values()), "tree")
    said = [f"label {label} {why} in {count} of {trees}" for why, count in idle.items() if why]
    said += ["the rules above say what was dropped: search more questions, sample warmer, or lower --pairs.margin"]
    return "; ".join(said if idle[""] else said[:-1])


def label_facts(config: PairsStageConfig, counts: Mapping[str, int], failed: int) -> dict[str, Any]:
    """What the report says of the labels: which, why, and by chained match how many steps met what."""
    of = {name.removeprefix("label."): count for name, count in counts.items() if name.startswith("label.")}
    steps = {name: counts[f"level.{name}"] for name in LEVELS if f"level.{name}" in counts}
    if config.label.name == "evidence":
        why = "; ".join(
            f"{LABELS[name]} in {of[name]} of {counted(counts['trees'], 'tree')}" for name in LABELS if name in of
        )
    else:
        why = f"{config.label.name}{', chained' if config.label.chained else ''}, as label.name says"
    return {"why": why, "trees": of, "unsolved": counts["unsolved"], "levels": steps, "failed_searches": failed}


def one_prompt(trees: list[Path], sources: list[dict[str, Any]]) -> tuple[Any, Grammar]:
    """The identity of the prompts that trees were made by, None where no manifest says, and their grammar: the one
    that they name, or the manifests of their runs (`sources`; empty where a file lies in none), by default the base
    grammar. Raises ConfigError where two files differ.
    """
    both = list(zip(trees, sources, strict=True))
    prompts = [(file, prompt) for file, source in both if (prompt := source.get("identity", {}).get("prompt"))]
    grammars = [(file, grammar) for file, source in both if (grammar := _named_grammar(file, source))]
    for known in (prompts, grammars):
        for file, of in known:
            if of != known[0][1]:
                raise ConfigError(
                    f"{known[0][0]} and {file} were made by different prompts; give each a pairs folder of its own"
                )
    return prompts[0][1] if prompts else None, grammars[0][1] if grammars else grammar_of({})


def _named_grammar(file: Path, source: dict[str, Any]) -> Grammar | None:
    """What the first tree of a file, or else the manifest beside it, says of the grammar; None where neither does."""
    first = next(read_trees(file), None)
    named = {**source, "grammar": first[0].grammar} if first and first[0].grammar else source
    return grammar_of(named) if named else None


def read_trees(*files: Path) -> Iterator[tuple[Tree, str]]:
    """Each tree with the hash of its line, streamed. Raises DataError with file and line."""
    for path in files:
        for number, line in read_lines(path):
            yield from_dict(Tree, parse_line(line, path, number), path, number), line_hash(line)


def _facts(trees: list[Path], grammar: Grammar) -> Iterator[tuple[Facts, str]]:
    """The facts of every tree, with the hash of its line. Raises ConfigError for a tree of another grammar."""
    for tree, tree_hash in read_trees(*trees):
        check_follows(tree, grammar)
        yield facts_about(tree, grammar), tree_hash


def _add(
    folder: PairsFolder, facts: Facts, tree_hash: str, config: PairsStageConfig, diagnostics: RewardDiagnostics
) -> str:
    """Adds every product that is asked for. Returns why the label gives no pair of this tree, "" where it may."""
    facts = without_luck(facts) if config.label.grounded else facts
    tree, estimates, worth = facts.tree, rewards(facts, config.label), outcomes(facts.tree, config.label)
    diagnostics.add(facts, worth)
    right = solved(tree)
    folder.counts.update(trees=1, nodes=len(tree.nodes), guessable=int(facts.guessable), unsolved=int(not right))
    folder.counts[f"label.{_label_name(facts, config)}"] += 1
    if facts.met is not None:
        folder.counts.update({f"level.{name}": count for name, count in levels(facts.met).items()})
    if facts.guessable and config.guessable == "drop":
        return ""
    made: dict[str, Any] = {
        "pairs": lambda: build_pairs(tree, tree_hash, estimates, config.pairs, folder.rules),
        "sft": lambda: build_trajectories(
            facts, tree_hash, worth, estimates, config.sft, partial(folder.exemplary, tree)
        ),
        "steps": lambda: build_labels(tree, tree_hash, estimates),
        "rankings": lambda: build_rankings(tree, tree_hash, estimates),
    }  # fmt: skip
    for product in config.products:
        folder.add(tree.question, made[product](), 0 if right else folder.counts["unsolved"])
    worths = [[reward.value for reward, _ in rated] for _, rated in prompts(tree, estimates)]
    if not any(len(each) > 1 for each in worths):
        return "gave no two siblings a worth" if worths else "gave only None"
    return "" if any(len({*each}) > 1 for each in worths) else "gave siblings equal worth"


def _label_name(facts: Facts, config: PairsStageConfig) -> str:
    """The label that a tree has; of `evidence` the one that it chose (`LABELS`)."""
    if config.label.name != "evidence":
        return config.label.name
    return "gold" if facts.gold is not None else "answers" if facts.guessable else "cover"
