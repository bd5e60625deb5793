"""`steprag plan`: calls, tokens, dollars and hours of a generation run, before anything is spent."""

from __future__ import annotations

import argparse
import sys

from data_generation.config import GenerateConfig
from steprag.agent.belief import MOST_ANSWERS
from steprag.batch.datasets import add_dataset_options, chosen_file
from steprag.batch.forecast import Forecast, add_forecast_options, print_forecast
from steprag.batch.tree_results import TREES
from steprag.config.load import add_options, config_from, parse_arguments
from steprag.console.terminal import guarded
from steprag.records.inputs import read_questions
from steprag.types import Question

LIKELY_SHARE = {"default": 0.16, "fast": 0.59, "reasonrag": 0.53}
"""Of the calls that a tree of a preset may take, where one request gives all its samples, those that it took:
docs/figures/search.md, "Pairs a call, by preset".
"""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag plan", description="What a generation run will cost")
    add_dataset_options(parser, "train, else the first there is")
    add_forecast_options(parser)
    add_options(parser, GenerateConfig)
    given = parse_arguments(parser, argv)
    config = config_from(GenerateConfig, given)
    questions = read_questions(chosen_file(given, learning=True))[: config.limit]
    return print_forecast(planned(config, questions), given, ["generate", *argv])


def planned(config: GenerateConfig, questions: list[Question]) -> Forecast:
    """The trees of the questions, as a plan."""
    search, share = config.search, LIKELY_SHARE[config.search.preset]
    likely = {role: share * each for role, each in most_calls(config, split=False).items()}
    judge, replies = config.judge if config.reward.judged else None, search.siblings or search.children
    where, alike = "docs/figures/search.md", ("episode", "search", "reward")
    results = "trees.jsonl", TREES
    return Forecast(config, questions, judge, most_calls(config), likely, replies, where, results, "trees", alike)


def most_calls(config: GenerateConfig, *, split: bool = True) -> dict[str, int]:
    """The calls by role that no tree exceeds: every iteration as deep as can be, where `split` an endpoint that gives
    one completion a request, the judge's second tries, and the beliefs of all states.
    """
    search = config.search
    width = min(search.siblings or search.children, search.children) if split else 1
    steps = config.episode.depth if search.play else 1
    samples, tries = (search.rollouts + search.extra) * steps * width, 2 if config.reward.judged else 0
    policy, both = samples, samples * (1 + tries)
    if config.tree.calls:
        wave = search.wave * steps * width
        policy, both = min(samples, config.tree.calls + wave), min(both, config.tree.calls + wave * (1 + tries))
    return {"policy": policy, "judge": both - policy, "score": MOST_ANSWERS * (1 + samples) if search.score else 0}


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
