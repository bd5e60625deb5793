"""`steprag pairs`: trees to pairs and what else they teach, split by question into train and validation."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from indexes import open_retriever
from preference.chained import LEVELS, AnswerSearches, levels
from preference.config import NO_REWARD, PairsStageConfig
from preference.kept import grounded, solved
from preference.pairs import build_pairs
from preference.pairs_folder import SPLITS, PairsFolder, add_push_option, made_folder, push_if_asked
from preference.report.card import generation_facts
from preference.report.reward_diagnostics import Calibration, RewardDiagnostics
from preference.rewards import chained_met, outcomes, rewards, settled, spre
from preference.supervised import build_labels, build_rankings, build_trajectories, ends
from steprag.agent.compliance import Refusals, refusals_told
from steprag.agent.grammar import Grammar
from steprag.agent.profiles import check_follows, grammar_of
from steprag.agent.retriever import PLACES, Retriever
from steprag.batch.tree_results import said_by, trees_file
from steprag.config.load import PREFIX, add_options, config_from, parse_arguments
from steprag.console.progress import say
from steprag.errors import PART_DONE, ConfigError
from steprag.records.jsonl import file_hash, from_dict, line_hash, parse_line, read_lines
from steprag.runs.run import add_overwrite_option, open_run, run_of
from steprag.scores.metrics import guessable
from steprag.tree import Tree
from steprag.types import Passage, Usage

SEARCHED = 64
"""Trees whose answers are searched at the same time."""
LABELS = {
    "gold": "marked passages (gold)",
    "cover": "chained match (cover), as nothing is marked",
    "answers": "answers alone, as nothing is marked and the answer can be guessed",
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
    parser.add_argument("--out", metavar="DIR", help="where the pairs go [RUN/pairs, of the first]")
    parser.add_argument(
        "--index", metavar="INDEX",
        help=f"{PLACES}: chained match also asks it for question and golden answer, once a question",
    )  # fmt: skip
    add_overwrite_option(parser)
    add_push_option(parser)
    add_options(parser, PairsStageConfig)
    _tell_of_reward(argv)
    arguments = parse_arguments(parser, argv)
    config = config_from(PairsStageConfig, arguments)
    trees = [trees_file(given) for given in arguments.trees]
    out = Path(arguments.out) if arguments.out else trees[0].parent / "pairs"
    made = build(config, trees, out, arguments.index, arguments.overwrite)
    push_if_asked(arguments, out)
    return 0 if made else PART_DONE


def _tell_of_reward(argv: list[str]) -> None:
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
        diagnostics, calibration, usage = RewardDiagnostics(config.label, grammar), Calibration(), Usage()
        refusals = Refusals()
        for tree, tree_hash, found in searches.beside(read_trees(*trees)):
            check_follows(tree, grammar)
            usage += tree.usage
            calibration.add(tree)
            refusals.add(said_by(tree), sum(node.reasoning or 0 for node in tree.nodes))
            _add(folder, tree, tree_hash, config, grammar, diagnostics, found)
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
    if told := refusals_told(refusals.counts, refusals.first, refusals.reasoning):
        say(f"pairs: {told}")
    elif "pairs" in config.products and not folder.counts["pairs.train"]:
        say("pairs: no pair to train on; the rules and filters above say why: search more, hotter, or ask for less")
    return any(folder.counts[f"{product}.{split}"] for product in config.products for split in SPLITS)


def label_facts(config: PairsStageConfig, counts: Mapping[str, int], failed: int) -> dict[str, Any]:
    """What the report says of the labels: which, why, and by chained match how many steps met what."""
    of = {name.removeprefix("label."): count for name, count in counts.items() if name.startswith("label.")}
    steps = {name: counts[f"level.{name}"] for name in LEVELS if f"level.{name}" in counts}
    if config.label.name == "evidence":
        why = "; ".join(f"in {of[name]} of {counts['trees']} trees {LABELS[name]}" for name in LABELS if name in of)
    else:
        why = f"{config.label.name}{', chained' if config.label.chained else ''}, as label.name says"
    return {"why": why, "trees": of, "unsolved": counts["unsolved"], "levels": steps, "failed_searches": failed}


class Searches:
    """Trees with what a search for question and answer finds, where chained match labels them and an index is given.

    `failed` counts the searches that the retriever could not answer.
    """

    def __init__(self, config: PairsStageConfig, retriever: Retriever | None = None, run: Any = None) -> None:
        self._label, self._retriever, self._run, self.failed = config.label, retriever, run, 0
        self.identity = {"index": retriever.fingerprint} if retriever else {}

    def beside(self, trees: Iterable[tuple[Tree, str]]) -> Iterator[tuple[Tree, str, tuple[Passage, ...]]]:
        """Each tree and its hash, in order, with the passages found for it, `SEARCHED` trees at a time."""
        trees = iter(trees)
        while some := list(islice(trees, SEARCHED if self._retriever else 1)):
            found: dict[str, tuple[Passage, ...]] = {}
            if self._retriever:
                asked = {key: tree for tree, key in some if settled(tree, self._label).chained}
                searches = AnswerSearches(self._retriever)
                found = dict(zip(asked, self._run(searches.found([*asked.values()])), strict=True))
                self.failed += searches.failed
            yield from ((tree, key, found.get(key, ())) for tree, key in some)


@contextmanager
def answer_searches(index: str | None, config: PairsStageConfig) -> Iterator[Searches]:
    """Opens the index, if one is named. Raises ConfigError where the label has nothing to search."""
    label = config.label
    if index is not None and not (label.chained or label.name == "evidence"):
        raise ConfigError(
            f"--index is for chained match, and label.name is {label.name}: give --label.name cover --label.chained "
            "true, or leave --index out"
        )
    if index is None:
        yield Searches(config)
        return
    with asyncio.Runner() as runner:
        retriever = open_retriever(index, config.retriever)
        try:
            runner.run(retriever.ready())
            yield Searches(config, retriever, runner.run)
        finally:
            runner.run(retriever.aclose())


def one_prompt(trees: list[Path], sources: list[dict[str, Any]]) -> tuple[Any, Grammar]:
    """The identity of the prompts that trees were made by, None where no manifest tells, and their grammar: the one
    that they name, or the manifests of their runs (`sources`; empty where a file lies in none), by default the base
    grammar. Raises ConfigError where two files tell different ones.
    """
    told = list(zip(trees, sources, strict=True))
    prompts = [(file, prompt) for file, source in told if (prompt := source.get("identity", {}).get("prompt"))]
    grammars = [(file, grammar) for file, source in told if (grammar := _told_grammar(file, source))]
    for known in (prompts, grammars):
        for file, of in known:
            if of != known[0][1]:
                raise ConfigError(
                    f"{known[0][0]} and {file} were made by different prompts; give each a pairs folder of its own"
                )
    return prompts[0][1] if prompts else None, grammars[0][1] if grammars else grammar_of({})


def _told_grammar(file: Path, source: dict[str, Any]) -> Grammar | None:
    """What the first tree of a file, or else the manifest beside it, says of the grammar; None where neither does."""
    first = next(read_trees(file), None)
    named = {**source, "grammar": first[0].grammar} if first and first[0].grammar else source
    return grammar_of(named) if named else None


def read_trees(*files: Path) -> Iterator[tuple[Tree, str]]:
    """Each tree with the hash of its line, streamed. Raises DataError with file and line."""
    for path in files:
        for number, line in read_lines(path):
            yield from_dict(Tree, parse_line(line, path, number), path, number), line_hash(line)


def _add(
    folder: PairsFolder,
    tree: Tree,
    tree_hash: str,
    config: PairsStageConfig,
    grammar: Grammar,
    diagnostics: RewardDiagnostics,
    found: Sequence[Passage],
) -> None:
    """Every product that is asked for."""
    if config.label.grounded:
        tree = grounded(tree, grammar)
    met = chained_met(tree, config.label, grammar, found)
    estimates = rewards(tree, config.label, grammar, met)
    diagnostics.add(tree, estimates if config.label.name == "spre" else spre(tree, config.label))
    lucky = guessable(tree.question.question, tree.question.golden_answers)
    right = solved(tree)
    folder.counts.update(trees=1, nodes=len(tree.nodes), guessable=int(lucky), unsolved=int(not right))
    label = settled(tree, config.label)
    folder.counts[f"label.{'answers' if lucky and label is not config.label and label.chained else label.name}"] += 1
    if met is not None:
        folder.counts.update({f"level.{name}": count for name, count in levels(met).items()})
    if lucky and config.guessable == "drop":
        return
    made: dict[str, Any] = {
        "pairs": lambda: build_pairs(tree, tree_hash, estimates, config.pairs, folder.rules),
        "sft": lambda: build_trajectories(
            tree, tree_hash, outcomes(tree, config.label), estimates, config.sft, partial(folder.exemplary, tree),
            ends(tree, config.sft.partial, grammar), grammar=grammar,
        ),
        "steps": lambda: build_labels(tree, tree_hash, estimates),
        "rankings": lambda: build_rankings(tree, tree_hash, estimates),
    }  # fmt: skip
    for product in config.products:
        folder.add(tree.question, made[product](), 0 if right else folder.counts["unsolved"])
