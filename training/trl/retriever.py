"""Stage retriever: an encoder learns from `steprag pairs export --format embedding`, by sentence-transformers' trainer.

Its loss is the multiple negatives ranking loss (arXiv 1705.00652): of all passages in a batch, a query's own positive
has to come first. The checkpoint is an encoder's folder, for `steprag index build --encoder`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
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
from steprag.engines.pretrained import HUB_ID, MODEL_FILES, TO_COMPARE, check_complete, fetched, loading
from steprag.engines.tensors import check_finite, unwrapped
from steprag.engines.threads import one_load
from steprag.errors import ConfigError, counted, quoted
from steprag.records.jsonl import existing, file_hash, files_hash, read_records, read_value, shaped
from steprag.runs.run import Run, open_run
from training.config import NEUTRAL, TrainConfig
from training.job import Job
from training.order import hold_out
from training.trl.common import Refreezing, common_arguments, explained_out_of_memory, quiet, run_trainer

EMBEDDED = "minilm"
READS = frozenset({
    "stage", "model", "encoder", "learning_rate", "epochs", "max_steps", "minutes", "batch_size", "max_length",
    "warmup", "scheduler", "weight_decay", "max_grad_norm", "held_out", "seed", "bf16", *NEUTRAL,
})  # fmt: skip
"""The keys that this stage reads."""
FILES = ("triplets.train.jsonl", "triplets.val.jsonl")
COLUMNS = ("anchor", "positive", "negative")
"""In the order in which the loss takes them."""


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
        super().__init__(dataset, batch_size=batch_size, drop_last=False, seed=seed)
        self._rows = [*zip(*(dataset[name] for name in COLUMNS), strict=True)]
        self._golden: dict[str, set[str]] = defaultdict(set)
        for anchor, positive, _negative in self._rows:
            self._golden[anchor].add(positive)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.Generator().manual_seed(self.seed + self.epoch)
        waiting = deque(torch.randperm(len(self._rows), generator=order).tolist())
        while waiting:
            batch, later = list[int](), list[int]()
            golden, shown = set[str](), set[str]()
            while waiting and len(batch) < self.batch_size:
                row = waiting.popleft()
                anchor, *passages = self._rows[row]
                fits = golden.isdisjoint(passages) and shown.isdisjoint(self._golden[anchor])
                (batch if fits else later).append(row)
                if fits:
                    golden |= self._golden[anchor]
                    shown.update(passages)
            waiting.extendleft(reversed(later))
            yield batch


class RetrieverTrainer(Refreezing, SentenceTransformerTrainer):
    """sentence-transformers' trainer, which ends where a gradient is no number."""

    def _load_from_checkpoint(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, resume_from_checkpoint: str, model: Any = None
    ) -> None:
        SentenceTransformerTrainer._load_from_checkpoint(self, resume_from_checkpoint)


@contextmanager
def trained(pairs: str, out: Path, config: TrainConfig, threads: int) -> Iterator[Run]:
    """The run that trains, or has trained, from the rows in `pairs`. Raises ConfigError and DataError."""
    if strangers := sorted(config.model_fields_set - READS):
        raise ConfigError(f"{strangers[0]}: stage retriever does not read it; leave it out")
    files = [existing(pairs, "folder of steprag pairs export --format embedding") / name for name in FILES]
    rows, held_out = (list(read_records(file, Triplet)) if file.is_file() else [] for file in files)
    if not rows:
        raise ConfigError(f"{files[0]} is missing or empty: steprag pairs export --format embedding makes it of trees")
    base = find_base(config.model if "model" in config.model_fields_set else EMBEDDED)
    weights = files_hash(sorted(base.rglob("*.safetensors")))
    data = {file.name: file_hash(file) for file in files if file.is_file()}
    recipe = config.model_dump(mode="json", include={*READS - NEUTRAL - {"model"}})
    identity = {**recipe, "weights": weights, "data": data}
    with open_run(out, "train", identity=identity, config=config.model_dump(mode="json")) as run:
        if run.finished:
            say(f"{run.path} is trained already: {counted(run.manifest['steps'], 'step')}; nothing to do")
        else:
            say(f"train: retriever on {counted(len(rows), 'row')}, from {base}, {counted(threads, 'thread')}")
            quiet()
            torch.set_num_threads(threads)
            with explained_out_of_memory():
                drawn = hold_out(held_out, config.held_out, lambda row: row.anchor)
                outcome = _train(config, run, load(base, config), rows, drawn)
            packages = {name: version(name) for name in ("torch", "transformers", "sentence-transformers")}
            run.set(base={"name": str(base), "sha256": weights}, data=data, rows=len(rows), held_out_rows=len(drawn),
                    validation_rows=len(held_out), packages=packages,
                    **asdict(outcome))  # fmt: skip
        yield run


def find_base(name: str) -> Path:
    """The folder of an encoder: `minilm`, a folder, or a hub id. Raises ConfigError where it says not how it pools, or
    needs code of its own.
    """
    folder = embedded_encoder() if name == EMBEDDED else Path(name).expanduser()
    if not folder.is_dir():
        if not HUB_ID.fullmatch(name):
            raise ConfigError(
                f"encoder {quoted(name)} not found: give minilm, a sentence-transformers folder or a hub id"
            )
        folder = fetched(name, [*MODEL_FILES, "[0-9]*_*/*.json", "[0-9]*_*/*.safetensors"], "encoder")
    listed = folder / "modules.json"
    if not listed.is_file():
        raise ConfigError(f"{folder} does not say how it pools (modules.json); give a sentence-transformers folder")
    with shaped(listed):
        types = [one["type"] for one in read_value(listed, 1 << 20)]
    foreign = next((one for one in types if not one.startswith("sentence_transformers.")), None)
    if foreign or not [*folder.rglob("*.safetensors")]:
        reason = f"code of its own ({quoted(foreign)})" if foreign else "pickled weights"
        raise ConfigError(f"{folder} needs {reason}, which is never loaded; choose another")
    return folder


def load(folder: Path, config: TrainConfig) -> SentenceTransformer:
    """The encoder with the prompts that it is trained with, which its checkpoint keeps."""
    with one_load(), loading(folder):
        model = SentenceTransformer(
            str(unwrapped(folder)),
            trust_remote_code=False,
            local_files_only=True,
            model_kwargs=dict(TO_COMPARE),
        )
    check_complete(cast(Any, model[0]).model, folder, model.tokenizer, unread="pooler")
    check_finite(folder, model.named_parameters())
    given, said = config.encoder, model.prompts
    query = said.get("query", "") if given.query_prefix is None else given.query_prefix
    passage = said.get("document") or said.get("passage", "") if given.passage_prefix is None else given.passage_prefix
    model.prompts = {"query": query, "document": passage}
    model.max_seq_length = min(config.max_length, model.max_seq_length or config.max_length)
    return model


def _train(
    config: TrainConfig, run: Run, model: SentenceTransformer, rows: list[Triplet], held_out: list[Triplet]
) -> Any:
    before = dict(zip(COLUMNS, (model.prompts[role] for role in ("query", "document", "document")), strict=True))
    arguments = {**common_arguments(config, run.path / "checkpoints"), "num_train_epochs": config.epochs,
                 "batch_sampler": ApartSampler, "prompts": before}  # fmt: skip
    del arguments["train_sampling_strategy"]
    data = [Dataset.from_dict({name: [getattr(row, name) for row in part] for name in COLUMNS}) if part else None
            for part in (rows, held_out)]  # fmt: skip
    loss = MultipleNegativesRankingLoss(model, scale=1 / config.encoder.temperature)
    trainer = RetrieverTrainer(model, SentenceTransformerTrainingArguments(**arguments), *data, loss=loss)
    outcome = run_trainer(trainer, Job(cast(Any, None), cast(Any, None), [], [], config, run))
    model.save_pretrained(str(run.path), create_model_card=False, safe_serialization=True)
    return outcome
