"""`steprag plan infer`: calls, tokens, dollars and hours of a run of the agent, before anything is spent."""

from __future__ import annotations

import argparse
import sys

from inference.config import InferConfig, config_of
from inference.inference import PREDICTIONS
from inference.predictions import PREDICTIONS as FILE
from steprag.batch.datasets import add_dataset_options, chosen_file, sampled
from steprag.batch.forecast import Forecast, add_forecast_options, print_forecast
from steprag.config.load import add_options, parse_arguments
from steprag.console.terminal import guarded
from steprag.records.inputs import read_questions

LIKELY_STEPS = 4.6
"""Of an episode on Atlas: 1.8 searches of two steps each, and the answer (docs/figures/results.md)."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag plan infer", description="What a run of the agent will cost")
    add_dataset_options(parser, "test, else dev")
    add_forecast_options(parser)
    add_options(parser, InferConfig)
    given = parse_arguments(parser, argv)
    config = config_of(InferConfig, given, tell=False)
    questions = sampled(read_questions(chosen_file(given)), config.sample, config.seed)[: config.limit]
    depth, alike = config.episode.depth, ("episode", "best_of", "candidates")
    max_calls = {"policy": config.best_of * depth * config.candidates}  # an endpoint may give one completion a request
    likely = {"policy": config.best_of * min(depth, LIKELY_STEPS)}
    plan = Forecast(config, questions, None, max_calls, likely, config.candidates,
                    "docs/figures/results.md", (FILE, PREDICTIONS), "predictions", alike)  # fmt: skip
    return print_forecast(plan, given, ["infer", *argv])


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
