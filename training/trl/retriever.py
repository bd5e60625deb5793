"""Stage retriever: an encoder learns from `steprag pairs export --format embedding`, by sentence-transformers' trainer.

Its loss is the multiple negatives ranking loss (arXiv 1705.00652): of all passages in a batch, a query's own positive
has to come first. The checkpoint is an encoder's folder, for `steprag index build --encoder`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from steprag.console.progress import say
from steprag.engines.models import embedded_encoder
from steprag.engines.pretrained import HUB_ID, MODEL_FILES, check_complete, fetched, loading
from steprag.engines.threads import one_load
from steprag.errors import ConfigError, DataError, quoted
from steprag.records.jsonl import existing, file_hash, files_hash, from_dict, read_rows, read_value
from steprag.runs.run import Run, open_run
from training.config import NEUTRAL, TrainConfig
from training.job import Job
from training.trl.common import Refreezing, common_arguments, memory_told, quiet, run_trainer

EMBEDDED = "minilm"
READS = frozenset({
    "stage", "model", "encoder", "learning_rate", "epochs", "max_steps", "minutes", "batch_size", "max_length",
    "warmup", "scheduler", "weight_decay", "max_grad_norm", "held_out", "seed", "bf16", *NEUTRAL,
})  # fmt: skip
"""The keys that this stage reads."""
OURS = "sentence_transformers."
PROMPTS = {"query": ("query",), "document": ("document", "passage")}
"""What a folder's prompts are called, before queries and before passages."""


@dataclass(frozen=True)
class Triplet:
    """A query, a passage that answers it and one that does not: sentence-transformers' row."""

    anchor: str
    positive: str
    negative: str
    extra: dict[str, Any] = field(default_factory=dict)


class ApartSampler(DefaultBatchSampler):
    """Batches in which no passage answers the query of another row: there it would count as a wrong one."""

    def __init__(self, dataset: Any, batch_size: int, seed: int = 0, **_: Any) -> None:
        super().__init__(dataset, batch_size=batch_size, drop_last=False)
        self._rows = [*zip(dataset["anchor"], dataset["positive"], dataset["negative"], strict=True)]
        self._seed, self.epoch = seed, 0
        self._golden: dict[str, set[str]] = defaultdict(set)
        for anchor, positive, _ in self._rows:
            self._golden[anchor].add(positive)

    def set_epoch(self, epoch: int) -> None:
        """Another order for another pass over the rows."""
        self.epoch = epoch

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.Generator().manual_seed(self._seed + self.epoch)
        waiting = torch.randperm(len(self._rows), generator=order).tolist()
        while waiting:
            batch, later = [], []
            golden: set[str] = set()
            shown: set[str] = set()
            for place, row in enumerate(waiting):
                anchor, *passages = self._rows[row]
                if golden.isdisjoint(passages) and shown.isdisjoint(self._golden[anchor]):
                    batch.append(row)
                    golden |= self._golden[anchor]
                    shown.update(passages)
                else:
                    later.append(row)
                if len(batch) == self.batch_size:
                    later += waiting[place + 1 :]
                    break
            waiting = later
            yield batch


class RetrieverTrainer(Refreezing, SentenceTransformerTrainer):
    """sentence-transformers' trainer, which ends where a gradient is no number."""

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        SentenceTransformerTrainer._load_from_checkpoint(self, resume_from_checkpoint)


def trained(pairs: str, out: str, config: TrainConfig, threads: int) -> AbstractContextManager[Run]:
    """The run that trains, or has trained, from the rows in `pairs`. Raises ConfigError and DataError."""
    if strangers := sorted(config.model_fields_set - READS):
        raise ConfigError(f"{strangers[0]}: stage retriever does not read it; leave it out")
    folder = existing(pairs, "folder of steprag pairs export --format embedding")
    files = {split: folder / f"triplets.{split}.jsonl" for split in ("train", "val")}
    remedy = "make it by steprag pairs export --format embedding --trees RUN --corpus FILE"
    if not files["train"].is_file():
        raise ConfigError(f"training file not found: {files['train']} ({remedy})")
    rows, held_out = read_triplets(files["train"]), read_triplets(files["val"])[: config.held_out]
    if not rows:
        raise DataError(files["train"], "holds no rows", remedy=remedy)
    base = find_base(config.model if "model" in config.model_fields_set else EMBEDDED)
    hashes = {file.name: file_hash(file) for file in files.values() if file.is_file()}
    recipe = config.model_dump(mode="json", include={*READS - NEUTRAL - {"model"}})
    identity = {**recipe, "weights": files_hash(sorted(base.rglob("*.safetensors"))), "data": hashes}
    facts = {"base": {"name": str(base), "sha256": identity["weights"]}, "data": hashes, "rows": len(rows)}
    return _run(out, identity, config, base, rows, held_out, facts, threads)


@contextmanager
def _run(
    out: str, identity: dict[str, Any], config: TrainConfig, base: Path, rows: list[Triplet], held_out: list[Triplet],
    facts: dict[str, Any], threads: int,
) -> Iterator[Run]:  # fmt: skip
    with open_run(out, "train", identity=identity, config=config.model_dump(mode="json")) as run:
        if run.finished:
            say(f"{out} is trained already: {run.manifest['steps']} steps; nothing to do")
        else:
            say(f"train: retriever on {len(rows)} rows, from {base}, {threads} threads")
            quiet()
            torch.set_num_threads(threads)
            with memory_told():
                outcome = _train(config, run, load(base, config), rows, held_out)
            packages = {name: version(name) for name in ("torch", "transformers", "sentence-transformers")}
            run.set(**facts, **asdict(outcome), packages=packages)
        yield run


def read_triplets(path: Path) -> list[Triplet]:
    """The rows of a file, checked; none where there is no such file. Raises DataError with the line."""
    rows: list[Triplet] = []
    for line, found in read_rows(path) if path.is_file() else ():
        row = from_dict(Triplet, found, path, line)
        if not all(text.strip() for text in (row.anchor, row.positive, row.negative)):
            raise DataError(path, "anchor, positive and negative: one is empty", line=line)
        if row.positive == row.negative:
            raise DataError(path, "positive and negative are the same text", line=line)
        rows.append(row)
    return rows


def find_base(name: str) -> Path:
    """The folder of an encoder: `minilm`, a folder, or a hub id. Raises ConfigError where it says not how it pools, or
    needs code or pickled weights.
    """
    folder = Path(name).expanduser()
    if name == EMBEDDED:
        return embedded_encoder()
    if not folder.is_dir():
        if not HUB_ID.fullmatch(name):
            raise ConfigError(
                f"encoder {quoted(name)} not found: give minilm, a sentence-transformers folder or a hub id"
            )
        folder = fetched(name, [*MODEL_FILES, "[0-9]*_*/*.json", "[0-9]*_*/*.safetensors"], "encoder")
    if not (folder / "modules.json").is_file():
        raise ConfigError(f"{folder} does not say how it pools (modules.json); give a sentence-transformers folder")
    for module in read_value(folder / "modules.json", 1 << 20):
        place = folder / str(module.get("path", ""))
        if not str(module.get("type", "")).startswith(OURS):
            raise ConfigError(f"{folder} needs code of its own ({quoted(module.get('type'))}), which is never run")
        if any(place.glob("pytorch_model*.bin")) and not any(place.glob("*.safetensors")):
            raise ConfigError(f"{place} holds no safetensors weights; pickled weights are never loaded")
    return folder


def load(folder: Path, config: TrainConfig) -> SentenceTransformer:
    """The encoder with the prompts that it is trained with, which its checkpoint keeps."""
    with one_load(), loading(folder):
        model = SentenceTransformer(
            str(folder), trust_remote_code=False, local_files_only=True, model_kwargs={"use_safetensors": True}
        )
    check_complete(cast(Any, model[0]).model, folder, unread="pooler")
    given = {"query": config.encoder.query_prefix, "document": config.encoder.passage_prefix}
    said = {role: next((model.prompts[name] for name in names if model.prompts.get(name)), "")
            for role, names in PROMPTS.items()}  # fmt: skip
    model.prompts = {role: said[role] if given[role] is None else given[role] or "" for role in PROMPTS}
    model.max_seq_length = min(config.max_length, model.max_seq_length or config.max_length)
    return model


def _train(
    config: TrainConfig, run: Run, model: SentenceTransformer, rows: list[Triplet], held_out: list[Triplet]
) -> Any:
    arguments: dict[str, Any] = {
        **common_arguments(config, run.path / "checkpoints"),
        "num_train_epochs": config.epochs,
        "batch_sampler": ApartSampler,
        "prompts": {"anchor": model.prompts["query"], "positive": model.prompts["document"],
                    "negative": model.prompts["document"]},
    }  # fmt: skip
    del arguments["train_sampling_strategy"]
    trainer = RetrieverTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(**arguments),
        train_dataset=as_columns(rows),
        eval_dataset=as_columns(held_out) if held_out else None,
        loss=MultipleNegativesRankingLoss(model, scale=1 / config.encoder.temperature),
    )
    outcome = run_trainer(trainer, Job(cast(Any, None), cast(Any, None), [], [], config, run))
    model.save_pretrained(str(run.path), create_model_card=False, safe_serialization=True)
    return outcome


def as_columns(rows: Sequence[Triplet]) -> Dataset:
    """The three columns, in the order in which the loss takes them."""
    return Dataset.from_dict(
        {name: [getattr(row, name) for row in rows] for name in ("anchor", "positive", "negative")}
    )
