"""Question files by name, and the questions that are drawn from one."""

from __future__ import annotations

import random
from pathlib import Path

from steprag import atlas
from steprag.engines.pretrained import asking_the_hub
from steprag.errors import ConfigError, quoted
from steprag.records.jsonl import existing
from steprag.types import Question

FLASHRAG = "RUC-NLPIR/FlashRAG_datasets"
ON_HUB = {
    "hotpotqa": ("dev", "train"),
    "2wikimultihopqa": ("dev", "train"),
    "popqa": ("test",),
    "musique": ("dev", "train"),
    "bamboogle": ("test",),
    "nq": ("test", "dev", "train"),
    "triviaqa": ("test", "dev", "train"),
}
"""The splits that FlashRAG's collection on the hub has of a data set; the first is the one without `--split`."""
NAMES = ("atlas", *ON_HUB, "medqa")
"""The embedded data set, and folder names in FlashRAG's layout; the collection itself has no MedQA."""


def chosen_file(questions: str | None, name: str | None, split: str | None, data_dir: str | None) -> Path:
    """The file that `--questions` gives, or the one that `--dataset_name` and its options name. Raises ConfigError."""
    if questions is None:
        if name is None:
            raise ConfigError("no questions: give --dataset_name NAME, or --questions FILE")
        return question_file(name, split, data_dir)
    for option, value in (("--split", split), ("--data_dir", data_dir)):
        if value is not None:
            raise ConfigError(f"{option} is for a data set without --questions, which is a file already: leave it out")
    return existing(questions, "question file")


def question_file(name: str, split: str | None, data_dir: str | None) -> Path:
    """The file of a data set: embedded (atlas), `DATA_DIR/name/split.jsonl` in FlashRAG's layout, or fetched from the
    hub unless it is on this machine.

    Without a split: test where there is one, else dev. Raises ConfigError.
    """
    if name not in NAMES:
        raise ConfigError(f"unknown data set {quoted(name)}; known: {', '.join(NAMES)} (or give --questions FILE)")
    if name != "atlas":
        return _fetched(name, split) if data_dir is None else _in_folder(name, split, Path(data_dir))
    if data_dir is not None:
        raise ConfigError("atlas is embedded: leave --data_dir out, or give --questions FILE")
    if split not in (None, "train", "dev", "test"):
        raise ConfigError(f"atlas has no split {quoted(split)}; known: train, dev, test")
    return atlas.path(split or "test")


def _in_folder(name: str, split: str | None, data_dir: Path) -> Path:
    folder = data_dir / name
    for candidate in [split] if split else ["test", "dev"]:
        if (folder / f"{candidate}.jsonl").is_file():
            return folder / f"{candidate}.jsonl"
    raise ConfigError(
        f"no {split or 'test or dev'}.jsonl in {folder}; FlashRAG's layout is DATA_DIR/{name}/SPLIT.jsonl"
    )


def _fetched(name: str, split: str | None) -> Path:
    """The file of the newest commit, or of the last one fetched where the hub cannot be reached."""
    remedy = f"give --data_dir with {name}/SPLIT.jsonl in it, or --questions FILE"
    if name not in ON_HUB:
        raise ConfigError(f"FlashRAG's collection on the hub has no {name}: {remedy}")
    if split not in (None, *ON_HUB[name]):
        known = ", ".join(ON_HUB[name])
        raise ConfigError(f"{name} has no split {quoted(split)} in FlashRAG's collection on the hub; known: {known} "
                          f"(or {remedy})")  # fmt: skip
    from huggingface_hub import hf_hub_download

    file = f"{name}/{split or ON_HUB[name][0]}.jsonl"
    with asking_the_hub(f"{file} of {FLASHRAG}: not on this machine and not fetched", remedy):
        return Path(hf_hub_download(FLASHRAG, file, repo_type="dataset"))


def sampled(questions: list[Question], count: int | None, seed: int) -> list[Question]:
    """`count` of the questions, drawn by the seed, in their order; all where there are no more, or without a count."""
    if count is None or count >= len(questions):
        return questions
    return [questions[place] for place in sorted(random.Random(seed).sample(range(len(questions)), count))]
