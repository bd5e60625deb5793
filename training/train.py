"""`steprag train`: a pairs folder to a checkpoint.

The output folder is both the run folder and the checkpoint: adapter (or full weights), tokenizer and manifest stand at
its top. One file a back end: each takes the model, the tokens and the recipe, and trains the model in place.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from steprag.cli import guarded
from steprag.config import add_options, config_from, parse_arguments
from steprag.engines.models import ModelFiles, adapter_hash, hub_revision, resolve_model, weights_hash
from steprag.errors import ConfigError
from steprag.files import file_hash
from steprag.progress import say
from steprag.runs import Run, open_run, read_manifest
from steprag.threads import spin_briefly
from steprag.tokens import load_tokenizer
from training.checks import check_recipe, check_room, check_smoothing, check_template
from training.config import NEUTRAL, TrainConfig
from training.job import Job
from training.plots import draw
from training.policy import check_adapter
from training.rows import Row, data_files, read_file, read_training, tokenise

BACK_ENDS = {
    ("trl", "sft"): "training.trl_sft",
    ("trl", "dpo"): "training.trl_dpo",
    ("trl", "critic"): "training.trl_critic",
    ("llamafactory", "sft"): "training.llamafactory",
    ("llamafactory", "dpo"): "training.llamafactory",
}
PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")


@dataclass(frozen=True)
class Inputs:
    """What a run trains on, found and checked: rows, their files' hashes, the weights it starts from."""

    rows: list[Row]
    held_out: list[Row]
    hashes: dict[str, str]
    files: ModelFiles
    source: dict[str, Any]


def main(argv: list[str]) -> int:
    """Trains as the options say; returns 0 when the checkpoint is there."""
    arguments = _arguments(argv)
    config: TrainConfig = config_from(TrainConfig, arguments)
    inputs = gather(Path(arguments.pairs), config)
    check_room(Path(arguments.out), config, inputs.files)
    with open_run(
        arguments.out, "train", identity=_identity(config, inputs), config=config.model_dump(mode="json")
    ) as run:
        if run.finished:
            say(f"{arguments.out} is trained already: {run.manifest['steps']} steps; nothing to do")
        else:
            _train(config, inputs, run)
    _report(run, arguments.json)
    return 0


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="steprag train", description="Pairs to a checkpoint.", allow_abbrev=False)
    parser.add_argument("--pairs", required=True, metavar="DIR", help="folder that steprag pairs wrote")
    parser.add_argument("--out", required=True, metavar="CKPT", help="folder for the checkpoint and its manifest")
    parser.add_argument("--json", action="store_true", help="write the manifest to standard output when done")
    add_options(parser, TrainConfig)
    return parse_arguments(parser, argv)


def gather(folder: Path, config: TrainConfig) -> Inputs:
    """Reads and checks everything that can be wrong before a model is loaded."""
    train_file, val_file = data_files(folder, config.stage)
    rows = read_training(train_file, config.stage)
    held_out = read_file(val_file, config.stage)[: config.held_out]
    check_recipe(config)
    check_smoothing(config, [*rows, *held_out])
    files = resolve_model(config.model, config.adapter)
    check_template(files)
    check_adapter(files, config)
    hashes = {path.name: file_hash(path) for path in (train_file, val_file) if path.is_file()}
    source = read_manifest(folder) if (folder / "manifest.json").is_file() else {}
    return Inputs(rows, held_out, hashes, files, source)


def _identity(config: TrainConfig, inputs: Inputs) -> dict[str, Any]:
    recipe = config.model_dump(mode="json", exclude=set(NEUTRAL))
    return {
        **recipe,
        "model": inputs.files.name,
        "adapter": adapter_hash(inputs.files.adapter),
        "weights": weights_hash(inputs.files),
        "data": inputs.hashes,
    }


def _train(config: TrainConfig, inputs: Inputs, run: Run) -> None:
    threads = config.threads or os.cpu_count() or 1
    os.environ["OMP_NUM_THREADS"] = str(threads)  # read by native libraries when they load
    spin_briefly()
    say(f"train: {config.stage} on {len(inputs.rows)} rows, from {inputs.files.label}, {threads} threads")
    from training.trl_common import memory_told, quiet, use_threads

    quiet()
    use_threads(threads)
    tokenizer = load_tokenizer(inputs.files)
    rows = tokenise(inputs.rows, tokenizer, config.max_length)
    held_out = tokenise(inputs.held_out, tokenizer, config.max_length)
    if not rows:
        raise ConfigError(f"no row has at most {config.max_length} tokens; raise max_length")
    if left_out := len(inputs.rows) - len(rows):
        say(
            f"train: {left_out} of {len(inputs.rows)} rows have more than {config.max_length} tokens and are left out, "
            "not cut; raise max_length to learn them too"
        )
    back_end = importlib.import_module(BACK_ENDS[config.trainer, config.stage])
    with memory_told():
        outcome = back_end.train(Job(inputs.files, tokenizer, rows, held_out, config, run))
    counts = {"rows": len(rows), "rows_left_out": left_out, "tokens_an_epoch": sum(row.tokens for row in rows)}
    run.set(**_base(inputs), **counts, **asdict(outcome), packages=_versions())
    draw(run.path / "metrics.jsonl", run.path / "curves.png", f"{config.stage}, {inputs.files.label}")
    shutil.rmtree(run.path / "checkpoints", ignore_errors=True)


def _base(inputs: Inputs) -> dict[str, Any]:
    """The manifest's words on where this checkpoint comes from."""
    files, source = inputs.files, inputs.source
    adapter = {"name": str(files.adapter), "sha256": adapter_hash(files.adapter)} if files.adapter else None
    prompt = source.get("prompt") or source.get("prompt_profile") or source.get("profile")
    return {
        "base": {"name": files.name, "sha256": weights_hash(files), "revision": hub_revision(files)},
        "starting_adapter": adapter,
        "data": inputs.hashes,
        "prompt": prompt,
    }


def _versions() -> dict[str, str]:
    return {name: version(name) for name in PACKAGES}


def _report(run: Run, as_json: bool) -> None:
    manifest = run.manifest
    if as_json:
        sys.stdout.write(json.dumps(manifest, ensure_ascii=False) + "\n")
    losses = f"loss {manifest['loss_first']:.4f} → {manifest['loss_last']:.4f}"
    say(f"train: {manifest['steps']} steps, {losses}, checkpoint in {run.path}")


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
