"""`steprag train`: a pairs folder, or for GRPO questions and an index, to a checkpoint.

The output folder is both the run folder and the checkpoint: adapter (or full weights), tokenizer and manifest stand at
its top. One file a back end: each takes the model, the tokens and the recipe, and trains the model in place.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from steprag.agent.retriever import PLACES
from steprag.batch.datasets import add_question_options, questions_given
from steprag.config.load import add_options, config_from, parse_arguments
from steprag.config.recipes import out_of
from steprag.console.plots import can_draw
from steprag.console.progress import say, say_next
from steprag.engines.models import (
    ModelFiles,
    adapter_hash,
    configuration_hash,
    hub_revision,
    resolve_model,
    weights_hash,
)
from steprag.engines.threads import spin_briefly, threads_for
from steprag.engines.tokens import opened_thought
from steprag.engines.weights import load_tokenizer
from steprag.errors import PART_DONE, ConfigError, counted
from steprag.records.jsonl import file_hash
from steprag.records.left_out import LeftOut, as_json
from steprag.runs.run import Run, open_run, run_of
from training.card import write_card
from training.checks import check_smoothing, check_template
from training.config import ENGINE, NEUTRAL, ONLINE, TrainConfig
from training.job import Job, back_end
from training.machine import check_devices, check_recipe, show_one_gpu
from training.model import check_adapter, check_tokenizer
from training.order import by_prompt, hold_out
from training.parity import checked_tokens
from training.plan import check_room
from training.play.world import World, open_world
from training.plots import draw
from training.rows import Row, TokenRow, data_files, read_file, read_training

Counts = dict[str, Any]
"""Entries of the manifest."""
PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")


@dataclass(frozen=True)
class Inputs:
    """What a run trains on, found and checked: rows or a world, their files' hashes, the weights it starts from.

    `held_out`: drawn from the validation file, which has `validation` rows. `source`: the manifest of the folder that
    the rows come from; for a world, what stands in its place.
    """

    rows: list[Row]
    held_out: list[Row]
    hashes: dict[str, str]
    files: ModelFiles
    source: dict[str, Any]
    world: World | None = None
    validation: int = 0


def main(argv: list[str]) -> int:
    """Trains as the options say; returns 0 when the checkpoint is there, `PART_DONE` where no weight of it moved or the
    run collapsed.
    """
    arguments = _arguments(argv)
    config: TrainConfig = config_from(TrainConfig, arguments)
    threads = threads_for(config.threads)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # read by native libraries when they load
    spin_briefly()
    show_one_gpu(config)
    _check_sources(arguments, config)
    config, out = check_recipe(config), out_of(arguments, "train", arguments.pairs or arguments.questions)
    recipe = arguments.config or "the defaults, without --config"
    say(f"train: {config.stage} of {config.model} by {recipe}: {counted(config.epochs, 'epoch')}, learning rate "
        f"{config.learning_rate:g}; loading takes up to a minute")  # fmt: skip
    if config.stage == "retriever":
        from training.trl.retriever import trained

        with trained(arguments.pairs, out, config, threads) as run:
            shutil.rmtree(run.path / "checkpoints", ignore_errors=True)
        _report(run, arguments.json, argv)
        return 0
    online = config.stage == "grpo"
    with ExitStack() as stack:
        asked = str(questions_given(arguments)) if online else ""
        world = stack.enter_context(open_world(asked, arguments.index, config)) if online else None
        inputs = gather(arguments.pairs, config, world)
        check_room(out, config, inputs.files)
        identity, recipe = _identity(config, inputs), config.model_dump(mode="json")
        run = stack.enter_context(open_run(out, "train", identity=identity, config=recipe))
        if run.finished:
            say(f"{run.path} is trained already: {counted(run.manifest['steps'], 'step')}; nothing to do")
        else:
            _train(config, inputs, run, threads)
    _report(run, arguments.json, argv)
    return PART_DONE if run.manifest.get("unmoved") or run.manifest.get("collapse") else 0


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="steprag train", description="Pairs, or own episodes, to a checkpoint.")
    parser.add_argument("--pairs", metavar="DIR", help="folder of steprag pairs; retriever: of its export")
    add_question_options(parser, of=" to play, of grpo")
    parser.add_argument("--index", metavar="INDEX", help=f"grpo: {PLACES}")
    parser.add_argument("--out", metavar="CKPT", help="folder for the checkpoint and its manifest [runs/train-NAME]")
    parser.add_argument("--json", action="store_true", help="write the manifest to standard output when done")
    add_options(parser, TrainConfig)
    return parse_arguments(parser, argv)


def gather(pairs: str | None, config: TrainConfig, world: World | None = None) -> Inputs:
    """Reads and checks everything that can be wrong before a model is loaded: a pairs folder, or none for a world."""
    rows, validation, hashes, source = [], [], {}, {}
    if world:
        hashes, source = world.identity["data"], world.identity
    elif pairs is not None:
        folder = Path(pairs)
        train_file, val_file = data_files(folder, config.stage)
        rows = read_training(train_file, config.stage)
        validation = read_file(val_file, config.stage)
        hashes = {path.name: file_hash(path) for path in (train_file, val_file) if path.is_file()}
        source = run_of(train_file)
    held_out = hold_out(validation, config.held_out, lambda row: (row.question, row.prompt))
    check_smoothing(config, [*rows, *held_out])
    files = resolve_model(config.model, config.adapter)
    check_template(files)
    check_adapter(files, config)
    return Inputs(rows, held_out, hashes, files, source, world, len(validation))


def _check_sources(arguments: argparse.Namespace, config: TrainConfig) -> None:
    """Raises ConfigError for a source that the stage lacks or does not read."""
    wanted = ("questions", "index") if config.stage == "grpo" else ("pairs",)
    for name in ("pairs", "questions", "index"):
        given = getattr(arguments, name) is not None
        if given != (name in wanted):
            remedy = "leave it out" if given else "give it"
            learns = " and ".join(f"--{each}" for each in wanted)
            raise ConfigError(f"--{name}: stage {config.stage} learns from {learns}; {remedy}")


def _identity(config: TrainConfig, inputs: Inputs) -> dict[str, Any]:
    other = ("dpo", *ONLINE) if inputs.world else ("grpo", *ONLINE)
    recipe = config.model_dump(mode="json", exclude={*NEUTRAL, *other, "encoder"})
    if config.nodes == 1:  # as in runs that were begun before there was such a key
        del recipe["nodes"]
    if recipe["collapse"]:
        del recipe["collapse"]
    for late in ("chat_template_kwargs", "optim"):
        if not recipe[late]:
            del recipe[late]
    if inputs.world:
        recipe["grpo"] = {key: value for key, value in recipe["grpo"].items()
                          if key not in ENGINE and (value or key not in ("turns", "branch"))}  # fmt: skip
        recipe["grpo"] |= {"engine": True} if config.grpo.engine else {}
    return {
        **recipe,
        "model": inputs.files.name,
        "adapter": adapter_hash(inputs.files.adapter),
        "weights": weights_hash(inputs.files),
        "configuration": configuration_hash(inputs.files),
        "data": inputs.hashes,
        **(inputs.world.identity if inputs.world else {}),
    }


def _train(config: TrainConfig, inputs: Inputs, run: Run, threads: int) -> None:
    learnt = counted(len(inputs.world.questions), "question") if inputs.world else counted(len(inputs.rows), "row")
    spread = counted(threads, "thread") + (f" in {config.workers} processes" if config.workers > 1 else "")
    say(f"train: {config.stage} on {learnt}, from {inputs.files.label}, {spread}")
    import torch

    from training.launch import processes
    from training.trl.common import explained_out_of_memory, quiet

    if config.trainer == "trl":
        check_devices(config)
    quiet()
    torch.set_num_threads(threads)
    tokenizer = load_tokenizer(inputs.files, config.chat_template_kwargs)
    check_tokenizer(tokenizer)
    rows, held_out, counts = _encoded(inputs, tokenizer, config)
    job = Job(inputs.files, tokenizer, rows, held_out, config, run, inputs.world)
    if thought := opened_thought(tokenizer):
        run.set(thought=thought)
    adapter = inputs.files.adapter  # hashed now: it may be another run's checkpoint, and soon gone
    run.set(starting_adapter={"name": str(adapter), "sha256": adapter_hash(adapter)} if adapter else None)
    with explained_out_of_memory():
        outcome = (processes if config.trainer == "trl" and config.launched else back_end(config)).train(job)
    packages = {name: metadata.version(name) for name in PACKAGES}
    run.set(**_base(inputs), **counts, **asdict(outcome), packages=packages)
    if can_draw():
        draw(run.path / "metrics.jsonl", run.path / "curves.png", f"{config.stage}, {inputs.files.label}",
             run.manifest.get("collapse"))  # fmt: skip
    shutil.rmtree(run.path / "checkpoints", ignore_errors=True)


def _encoded(inputs: Inputs, tokenizer: Any, config: TrainConfig) -> tuple[list[TokenRow], list[TokenRow], Counts]:
    """Rows and held-out rows in tokens, and what the manifest says of them. Raises ConfigError where no row is left."""
    if inputs.world:
        return [], [], {"questions": len(inputs.world.questions), "left_out": as_json(inputs.world.gone)}
    left_out: dict[str, list[int]] = {}
    unscored: dict[str, list[int]] = {}
    rows = checked_tokens(inputs.rows, tokenizer, config.max_length, left_out)
    held_out = checked_tokens(inputs.held_out, tokenizer, config.max_length, unscored)
    reasons = [f"{len(numbers)}, first row {numbers[0]}: {reason}" for reason, numbers in left_out.items()]
    if not rows:
        raise ConfigError(f"none of {len(inputs.rows)} rows can be learnt ({reasons[0]})")
    if reasons:
        count = len(inputs.rows) - len(rows)
        say(f"train: {count} of {len(inputs.rows)} rows are left out, not cut ({'; '.join(reasons[:3])})")
    if 0 < len(inputs.held_out) < inputs.validation:
        say(f"train: {len(inputs.held_out)} of {inputs.validation} validation rows are held out, drawn by hash")
    if unscored:
        count = len(inputs.held_out) - len(held_out)
        say(f"train: {count} of {len(inputs.held_out)} held-out rows are not scored ({'; '.join([*unscored][:3])})")
    counts: Counts = {"rows": len(rows), "rows_left_out": len(inputs.rows) - len(rows)}
    gone = (LeftOut(f"rows: {why}", f"row {numbers[0]}", "", len(numbers)) for why, numbers in left_out.items())
    counts |= {"left_out": as_json(gone)}
    counts |= {"held_out_rows": len(held_out), "validation_rows": inputs.validation}
    counts |= {"tokens_an_epoch": sum(row.tokens for row in rows)}
    return by_prompt(rows) if config.stage == "dpo" else rows, held_out, counts


def _base(inputs: Inputs) -> dict[str, Any]:
    """The manifest's words on where this checkpoint comes from."""
    files, prompt = inputs.files, inputs.source.get("prompt")
    if not prompt and files.adapter:  # bare trees name none: those that the starting adapter was taught
        prompt = run_of(files.adapter / "adapter_config.json").get("prompt")
    base = {"name": files.name, "sha256": weights_hash(files), "revision": hub_revision(files)}
    return {"base": base, "data": inputs.hashes, "prompt": prompt or None}


def _report(run: Run, as_json: bool, argv: Sequence[str]) -> None:
    manifest = run.manifest
    if not run.finished:  # else the card may have been written on by then
        write_card(run, argv)
    if as_json:
        sys.stdout.write(json.dumps(manifest, ensure_ascii=False) + "\n")
    figure = "reward" if "reward_first" in manifest else "loss"  # the loss of GRPO says nothing about progress
    change = f"{figure} {manifest[f'{figure}_first']:.4f} → {manifest[f'{figure}_last']:.4f}"
    say(f"train: {counted(manifest['steps'], 'step')}, {change}, checkpoint in {run.path}")
    if manifest["config"]["stage"] in ("sft", "dpo", "grpo"):
        say_next("serve", "--model", run.path)
