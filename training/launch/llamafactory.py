"""LLaMA-Factory as the trainer, in an environment of its own: it is driven by files and a subprocess.

It is given token ids, not texts (`tokenized_path`). Its own templates differ from what inference sends: `qwen` learns a
newline after the turn's end and puts a system prompt where there is none; rows that are too long lose the end of the
prompt; rows it finds wrong are dropped with a warning. Ids made by `training.rows` have none of this, for any model
with a chat template. The rows lie in the order of training, all epochs end to end, and are not shuffled again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from steprag.console.progress import Progress
from steprag.engines.outlive_guard import running
from steprag.engines.weights import base_weights, check_weights
from steprag.errors import TrainingError
from steprag.records.jsonl import parse_line, read_json, written_whole
from training.job import Job, Outcome, finite, last_checkpoint, reason, scores, trainer_arguments
from training.machine import executable, has_blanks
from training.model import adopt, load_policy, save_merged
from training.order import order_for
from training.rows import TokenRow

LOG = "trainer_log.jsonl"
"""LLaMA-Factory's own file: one JSON object a logged step."""
DEEPSPEED = Path(__file__).parents[2] / "configs" / "training" / "deepspeed"


def train(job: Job) -> Outcome:
    """Writes tokens and YAML below CKPT/llamafactory, runs the trainer on them, and takes over what it made."""
    command = executable(job.config)
    check_weights(job.files)
    work = job.run.path / "llamafactory"
    checkpoint = last_checkpoint(job.checkpoints)
    if checkpoint:
        job.run.note(resumed_from=checkpoint.name)
    write_tokens(job, work / "tokens")
    recipe = train_recipe(job, work, checkpoint)
    with _without_blanks(write_yaml(work / "train.yaml", recipe)) as path:
        seconds = run_command([*command, "train", str(path)], job, work)
    outcome = _outcome(job, seconds)
    adopt(job.checkpoints, job.tokenizer, job.files, job.run.path)
    if job.config.merge and job.config.finetuning == "lora":
        whole = job.config.model_copy(update={"quantization": None})  # never the base in 4 bits
        policy = load_policy(replace(job.files, adapter=job.run.path), whole)
        save_merged(policy, job.tokenizer, job.run.path)
    shutil.rmtree(work / "tokens")
    return outcome


def write_yaml(path: Path, values: dict[str, Any]) -> Path:
    """`values` as YAML; keys whose value is None are left out."""
    with written_whole(path) as stream:
        yaml.safe_dump({key: value for key, value in values.items() if value is not None}, stream, sort_keys=False)
    return path


@contextmanager
def _without_blanks(path: Path) -> Iterator[Path]:
    """The file, or a copy where its path has blanks, at which LLaMA-Factory's launcher of several processes splits."""
    if not has_blanks(path):
        yield path
        return
    with TemporaryDirectory() as folder:
        yield Path(shutil.copy(path, folder))


def write_tokens(job: Job, folder: Path) -> None:
    """The rows as LLaMA-Factory keeps a tokenised data set: splits `train`, in the order of training, `validation`."""
    from datasets import Dataset, DatasetDict

    order = order_for(job.config, job.rows)
    splits = {"train": Dataset.from_list([columns(row) for row in job.rows]).select(order)}
    if job.held_out:
        splits["validation"] = Dataset.from_list([columns(row) for row in job.held_out])
    shutil.rmtree(folder, ignore_errors=True)
    DatasetDict(**splits).save_to_disk(str(folder))


NO_MEDIA: dict[str, Any] = {"images": None, "videos": None, "audios": None}
"""Columns that LLaMA-Factory's collator reads from pairs in any case."""


def columns(row: TokenRow) -> dict[str, Any]:
    """A row's ids, masks and labels: of a pair those of chosen and rejected."""
    names = ("",) if len(row.completions) == 1 else ("chosen_", "rejected_")
    found: dict[str, Any] = {}
    for name, completion in zip(names, row.completions, strict=True):
        ids, labels = row.prompt + completion, [-100] * len(row.prompt) + completion
        found |= {f"{name}input_ids": ids, f"{name}attention_mask": [1] * len(ids), f"{name}labels": labels}
    return found | NO_MEDIA


def train_recipe(job: Job, work: Path, checkpoint: Path | None) -> dict[str, Any]:
    """The keys of `llamafactory-cli train`, version 0.9.5."""
    config = job.config
    deepspeed = str(DEEPSPEED / f"{config.deepspeed}.json") if config.deepspeed else None
    return {
        "model_name_or_path": base_weights(job.files),
        "trust_remote_code": False,
        "stage": config.stage,
        "do_train": True,
        "do_eval": bool(job.held_out),
        **_weights(job),
        **(_preference(job) if config.stage == "dpo" else {}),
        "deepspeed": deepspeed,
        "template": "empty",
        "dataset": "steprag",  # asked for, and not read: the tokens are there
        "eval_dataset": "steprag" if job.held_out else None,
        "tokenized_path": str(work / "tokens"),
        "disable_shuffling": True,
        "cutoff_len": config.max_length,
        **trainer_arguments(config, job.checkpoints),
        "overwrite_output_dir": True,
        "resume_from_checkpoint": str(checkpoint) if checkpoint else None,
        "disable_gradient_checkpointing": not config.gradient_checkpointing,
        "plot_loss": False,
    }


def _weights(job: Job) -> dict[str, Any]:
    """Which weights are trained, and in what the others are kept."""
    config = job.config
    if config.finetuning == "full":
        return {"finetuning_type": "full"}
    lora = config.lora
    keys: dict[str, Any] = {
        "finetuning_type": "lora",
        "adapter_name_or_path": str(job.files.adapter) if job.files.adapter else None,
        "lora_rank": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "lora_target": "all" if lora.target == "all-linear" else lora.target,
    }
    if config.quantization:
        keys |= {"quantization_bit": 4, "quantization_method": "bnb"}
        keys |= {"quantization_type": "nf4", "double_quantization": True}
    return keys


def _preference(job: Job) -> dict[str, Any]:
    """The loss; and the reference, which is where training starts, adapter included."""
    section = job.config.dpo
    reference: dict[str, Any] = {}
    if job.files.adapter:
        reference = {"ref_model": base_weights(job.files), "ref_model_adapters": str(job.files.adapter)}
        if job.config.quantization:
            reference["ref_model_quantization_bit"] = 4
    return {"pref_beta": section.beta, "pref_loss": section.loss[0], "pref_ftx": section.sft_weight, **reference}


def _outcome(job: Job, seconds: float) -> Outcome:
    state = read_json(job.checkpoints / "trainer_state.json")
    losses = finite([entry["loss"] for entry in state["log_history"] if "loss" in entry])
    results = job.checkpoints / "eval_results.json"
    held_out = scores(read_json(results)) if results.is_file() else {}
    if held_out:
        job.run.note(step=state["global_step"], **held_out)
    stopped_by = "max_steps" if job.config.max_steps else "epochs"
    return Outcome(state["global_step"], losses[0], losses[-1], seconds, stopped_by, held_out)


def run_command(command: Sequence[str], job: Job, work: Path) -> float:
    """Runs it to its end while its log moves the bar and fills `metrics.jsonl`; returns the seconds it took.

    Everything it says goes to `work/log.txt`. Raises TrainingError.
    """
    log, start = work / "log.txt", time.monotonic()
    (job.checkpoints / LOG).unlink(missing_ok=True)  # an earlier process's, noted already
    with log.open("ab") as stream, running(command, stream, _environment(command[0], job)) as process:
        offset = log.stat().st_size
        _follow(process, job)
    if process.returncode:
        text = log.read_bytes()[offset:].decode("utf-8", errors="replace")
        raise TrainingError(f"llamafactory-cli {command[-2]}: {reason(text, process.returncode)} (whole log: {log})")
    return round(time.monotonic() - start, 1)


def _environment(command: str, job: Job) -> dict[str, str]:
    """Ours, with torchrun on the path; offline where the weights are here; a launcher of processes for DeepSpeed and
    for several, which are then as many as the rows were laid out for.
    """
    found = {"PATH": f"{Path(command).parent}{os.pathsep}{os.environ.get('PATH', '')}", "USE_V1": "0"}
    if job.files.hub is None:
        found |= {"HF_HUB_OFFLINE": "1"}
    if job.config.deepspeed or job.config.workers > 1:
        found |= {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": str(job.config.processes)}
    return {**os.environ, **found}


def _follow(process: subprocess.Popen[bytes], job: Job) -> None:
    """Until the process ends: notes every new line of its log, once."""
    heard, bar = TrainerLog(job.checkpoints / LOG), None
    while True:
        ended = process.poll() is not None
        for row in heard.lines():
            step = int(row["current_steps"])
            bar = bar or Progress(job.config.stage, int(row["total_steps"]), "steps", done=step)
            if "loss" in row:
                finite([row["loss"]], f"step {step}: the loss")
                job.run.note(step=step, **{key: value for key, value in row.items() if key in _NUMBERS})
                bar.move_to(step, notes=f"loss {row['loss']:.4f}")
        if ended:
            break
        time.sleep(0.5)
    if bar:
        bar.__exit__(None, None, None)


_NUMBERS = ("loss", "accuracy", "lr", "epoch", "throughput")


class TrainerLog:
    """A growing file of JSON objects, read on from where the last reading stopped."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._number = path, 0, 0

    def lines(self) -> Iterator[dict[str, Any]]:
        """The objects of the whole lines that were added; the last line may still be in the making."""
        if not self._path.is_file():
            return
        with self._path.open("rb") as stream:
            stream.seek(self._offset)
            while (line := stream.readline()).endswith(b"\n"):
                self._offset, self._number = stream.tell(), self._number + 1
                text = line.decode("utf-8", errors="replace")
                row = parse_line(text, self._path, self._number, finite=False) if text.strip() else None
                if isinstance(row, dict):
                    yield row
