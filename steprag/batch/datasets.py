"""What `--questions` and `--dataset_name` name, as a file of questions; and the questions that are drawn from one.

A data set of the hub, and a table whose columns are named by `--columns`, are written to the cache as JSON Lines once.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from steprag import atlas
from steprag.console.progress import say
from steprag.engines.cache import cache_dir
from steprag.engines.pretrained import asking_the_hub
from steprag.errors import ConfigError, DataError, quoted
from steprag.records.inputs import CELLS
from steprag.records.json_text import as_json
from steprag.records.jsonl import existing, files_hash, written_whole
from steprag.records.left_out import LeftOut, say_left_out
from steprag.records.question_ids import SPLITS
from steprag.records.rows import read_any_rows, saved_files
from steprag.records.spellings import ANSWERS, PLACES, QUESTION_IDS, QUESTION_NAMES, QUESTIONS, folded, keys_of
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


HUB = "hub:"
"""Before the name of a data set of the hub, where a file may stand."""
COLUMNS = {"id": QUESTION_IDS, "question": QUESTIONS, "answer": (*ANSWERS, *PLACES)}
"""What a column may be named as by `--columns`, with the names that then mean nothing; others are metadata."""


def add_question_options(parser: argparse.ArgumentParser, *, required: bool = False, of: str = "") -> None:
    """`--questions` and `--columns`. `of`: what the command wants of the questions."""
    forms = f"JSON Lines, JSON, CSV, TSV, XLSX or Parquet, or {HUB}OWNER/NAME[:CONFIG[:SPLIT]] of the hub"
    parser.add_argument("--questions", required=required, metavar="FILE", help=f"questions{of}: {forms}")
    parser.add_argument("--columns", metavar="OURS=THEIRS,…", help="which columns hold what: question=q,answer=a, also "
                        "id; other names become metadata")  # fmt: skip


def add_dataset_options(parser: argparse.ArgumentParser, default: str) -> None:
    """Those of `add_question_options`, and data sets by name; `default` says which split is taken."""
    add_question_options(parser)
    parser.add_argument(
        "--dataset_name", metavar="NAME",
        help=f"data set: {', '.join(NAMES)}; beside --questions, the name of that file's data set",
    )  # fmt: skip
    parser.add_argument("--split", help=f"split of a named data set [{default}]")
    parser.add_argument("--data_dir", metavar="DIR", help="folder of named data sets in FlashRAG's layout, not the hub")


def questions_given(given: argparse.Namespace) -> Path:
    """The file that the options of `add_question_options` name, as `questions_at`."""
    return questions_at(given.questions, given.columns)


def questions_at(named: str, columns: str | None = None, what: str = "question file") -> Path:
    """The file of that name; or what is made of it, or of a data set of the hub, in the cache: `NAME/SPLIT.jsonl`, so
    that its folder names the data set. Raises ConfigError and DataError.
    """
    gone: list[LeftOut] = []
    if not named.startswith(HUB):
        path = existing(named, what)
        files = _files_in(path) if path.is_dir() else [path]
        if columns is None and files == [path]:
            return path
        found = (row for file in files for _, row in read_any_rows(file, gone, has_header=columns is not None))
        identity, place, rows = files_hash(files), path.absolute(), enumerate(found, 1)
    else:
        name, config, split, identity, found = hub_rows(named)
        place, rows = Path(f"{config or name.rpartition('/')[2]}/{split}"), enumerate(found(), 1)
    names = _columns(columns)
    key = hashlib.sha256(json.dumps([identity, str(place), names]).encode()).hexdigest()[:16]
    file = cache_dir() / "questions" / key / place.parent.name / f"{place.name.partition('.')[0]}.jsonl"
    if not file.is_file():
        with written_whole(file) as stream:
            for number, row in rows:
                renamed = _renamed(as_json(row), names, named, number)
                stream.write(json.dumps(renamed, ensure_ascii=False, allow_nan=False) + "\n")
        say_left_out(gone)
    return file


def _files_in(folder: Path) -> list[Path]:
    """The files of a folder that `save_to_disk` wrote, or of Parquet shards. Raises DataError for another folder, and
    where its files are of several splits.
    """
    files = saved_files(folder) or sorted(folder.rglob("*.parquet"))
    splits = {re.sub(r"-\d+-of-\d+", "", file.stem) for file in files}
    if len(splits) != 1:
        held = ", ".join(sorted(splits or {file.name for file in folder.iterdir()})[:5])
        raise DataError(folder, f"is a folder of {held or 'nothing'}", remedy="give the path of a file")
    return files


def hub_rows(named: str) -> tuple[str, str, str, str, Callable[[], Iterator[Any]]]:
    """Data set, configuration, split, identity (by its commit) and what streams the rows of
    `hub:OWNER/NAME[@COMMIT][:CONFIG[:SPLIT]]`; without a split, of train. Both raise ConfigError where the hub does not
    answer: it is needed for the rows, and for a commit that is not given and was never asked for.
    """
    place, config, split, *more = [*named.removeprefix(HUB).split(":"), "", ""][:4]
    name, at, revision = place.partition("@")
    if not name or (at and not revision) or (more and more[0]):
        raise ConfigError(f"{named}: write hub:OWNER/NAME, hub:OWNER/NAME:CONFIG or hub:OWNER/NAME:CONFIG:SPLIT;"
                          " NAME@COMMIT is a version of it")  # fmt: skip
    split = split or "train"
    unavailable = f"data set {quoted(name)} cannot be had from the hub", "download its files and give those"
    commit = revision if re.fullmatch("[0-9a-f]{40}", revision) else _commit(name, revision, unavailable)

    def rows() -> Iterator[Any]:
        from datasets import load_dataset

        with asking_the_hub(*unavailable):
            yield from load_dataset(name, config or None, split=split, streaming=True, revision=commit)

    return name, config, split, hashlib.sha256(f"{name}:{config}:{split}@{commit}".encode()).hexdigest(), rows


def _commit(name: str, revision: str, unavailable: tuple[str, str]) -> str:
    """The newest commit of a data set or of its revision; the last one that was seen where the hub does not tell."""
    from huggingface_hub import HfApi

    seen = cache_dir() / "questions" / "commits" / f"{name}@{revision}".replace("/", "--")
    try:
        with asking_the_hub(*unavailable):
            commit = str(HfApi().dataset_info(name, revision=revision or None).sha)
    except ConfigError as error:
        if not seen.is_file():
            raise
        say(f"{error}; taken is the commit that was seen last, {seen.read_text()}")
        return seen.read_text()
    with written_whole(seen) as stream:
        stream.write(commit)
    return commit


def _columns(text: str | None) -> dict[str, str]:
    """`question=q,answer=a` as the names of columns by ours. Raises ConfigError."""
    pairs = [part.partition("=") for part in (text or "").split(",") if part.strip()]
    if wrong := next((part for part in pairs if not all(map(str.strip, part))), None):
        raise ConfigError(f"--columns: {quoted(''.join(wrong))} should be OURS=THEIRS, such as question=q,answer=a")
    return {ours.strip(): theirs.strip() for ours, _, theirs in pairs}


def _renamed(row: Any, names: Mapping[str, str], source: str, number: int) -> dict[str, Any]:
    """A row under the names of ours that are given; without any as it is. Raises ConfigError for a column that is not
    there, and DataError for what is no row.
    """
    if not isinstance(row, dict):
        remedy = CELLS if isinstance(row, list) else ""
        raise DataError(source, f"does not fill the columns: {quoted(row)}", line=number, remedy=remedy)
    if not names:
        return row
    if missing := next((theirs for theirs in names.values() if theirs not in row), None):
        raise ConfigError(f"--columns: {source} has no column {quoted(missing)}; it has {keys_of(row)}")
    taken = {ours: row[theirs] for ours, theirs in names.items()}
    gone = {folded(name) for ours in COLUMNS if ours in taken for name in COLUMNS[ours]}
    known = {folded(name) for name in (*QUESTION_NAMES, "dataset")} - gone
    rest = {name: value for name, value in row.items() if name not in names.values()}
    beside = rest.pop("metadata", None)
    own = {name: rest.pop(name) for name in [*rest] if folded(name) in known}
    own |= {name: taken.pop(name) for name in COLUMNS if name in taken}
    return {**own, "metadata": {**(beside if isinstance(beside, dict) else {}), **rest, **taken}}


def file_name(file: Path) -> str:
    """What a question file is called in the name of a run folder; that of a split with its data set."""
    stem = file.name.partition(".")[0]
    return f"{file.absolute().parent.name}-{stem}" if stem in SPLITS else stem


def chosen_file(given: argparse.Namespace, *, learning: bool = False) -> Path:
    """The file that `--questions` gives, or the one that `--dataset_name` and its options name: of the test or dev
    split, of train for `learning`. Raises ConfigError.
    """
    if given.dataset_name is None and given.questions in NAMES and not Path(given.questions).exists():
        given.dataset_name, given.questions = given.questions, None  # a data set's name that stands bare
    if given.questions is None:
        if given.dataset_name is None:
            raise ConfigError("no questions: give a data set's name (atlas) or a file, as in steprag infer atlas")
        if given.columns is not None:
            raise ConfigError("--columns is for --questions; named data sets have known columns: leave it out")
        return question_file(given.dataset_name, given.split, given.data_dir, learning=learning)
    for option, value in (("--split", given.split), ("--data_dir", given.data_dir)):
        if value is not None:
            raise ConfigError(f"{option} is for a data set without --questions, which is a file already: leave it out")
    return questions_given(given)


def question_file(name: str, split: str | None, data_dir: str | None, *, learning: bool = False) -> Path:
    """The file of a data set: embedded (atlas), `DATA_DIR/name/split.jsonl` in FlashRAG's layout, or fetched from the
    hub unless it is on this machine.

    Without a split: test where there is one, else dev; for `learning` train before these. Raises ConfigError.
    """
    if name not in NAMES:
        raise ConfigError(f"unknown data set {quoted(name)}; known: {', '.join(NAMES)} (or give --questions FILE)")
    if name == "atlas":
        return _embedded(split or ("train" if learning else None), data_dir)
    if data_dir is not None:
        return _in_folder(name, [split] if split else ["train"] * learning + ["test", "dev"], Path(data_dir))
    return _fetched(name, split or ("train" if learning and "train" in ON_HUB.get(name, ()) else None))


def _embedded(split: str | None, data_dir: str | None) -> Path:
    if data_dir is not None:
        raise ConfigError("atlas is embedded: leave --data_dir out, or give --questions FILE")
    if split not in (None, "train", "dev", "test"):
        raise ConfigError(f"atlas has no split {quoted(split)}; known: train, dev, test")
    return atlas.path(split or "test")


def _in_folder(name: str, splits: Sequence[str], data_dir: Path) -> Path:
    files = [data_dir / name / f"{split}.jsonl" for split in splits]
    if found := next((file for file in files if file.is_file()), None):
        return found
    said = f"no {' or '.join(splits)}.jsonl in {data_dir / name}"
    raise ConfigError(f"{said}; FlashRAG's layout is DATA_DIR/{name}/SPLIT.jsonl")


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
