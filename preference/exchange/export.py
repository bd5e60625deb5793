"""`steprag pairs export`: a pairs folder in other tools' formats. Its own files are TRL's already.

The system prompt stays one in all formats. A row that a format cannot hold raises ValueError with the reason: nothing
is dropped.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from preference.exchange.embedding import export_embedding
from preference.exchange.proguide import to_row
from steprag.batch.datasets import add_question_options, questions_given
from steprag.batch.tree_results import trees_file
from steprag.config.load import parse_arguments
from steprag.config.recipes import RUNS, out_beside, stem_of
from steprag.console.progress import say, say_next
from steprag.errors import ConfigError, DataError, counted
from steprag.records.inputs import read_questions
from steprag.records.jsonl import dump_line, existing, from_dict, read_rows, write_json, written_whole
from steprag.records.training_rows import Pair, Trajectory
from steprag.types import Message, Question

FORMATS = ("llamafactory", "openai", "verl", "proguide", "embedding")
PARQUET_ROWS = 2000
"""Rows of a Parquet row group, and so of memory."""

Rows = Iterable[dict[str, Any]]
VERL_SYSTEM = (
    "Answer the question in small steps. Call the tool search for what you need to know, read what it finds, and "
    "search again where that does not suffice. End with the answer alone, as <answer> … </answer>."
)
"""What the model is told where verl plays the episodes, by tool calls in the model's own format."""
_SHAREGPT = {"user": "human", "assistant": "gpt"}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="steprag pairs export", description="A pairs folder in the formats of other tools."
    )
    parser.add_argument("--pairs", metavar="DIR", help="folder that steprag pairs wrote")
    add_question_options(parser, of=" in place of pairs, for verl's reinforcement learning")
    parser.add_argument("--trees", nargs="+", metavar="RUN", help="trees in place of pairs, for a retriever's training")
    parser.add_argument("--corpus", metavar="FILE", help="passages that the trees searched: a file, or an index folder")
    parser.add_argument("--format", nargs="+", choices=FORMATS, required=True, help="one or more formats")
    parser.add_argument("--out", metavar="DIR", help="a folder a format goes below it [DIR/export or runs/export-FILE]")
    given = parse_arguments(parser, argv)
    if (given.pairs, given.questions, given.trees).count(None) != 2:
        raise ConfigError("give --pairs DIR, or else --questions FILE, or else --trees RUN")
    if given.trees or "embedding" in given.format:
        return _trees(given)
    if given.questions:
        file = questions_given(given)
        return _questions(file, given.format, Path(given.out or f"{RUNS}/export-{stem_of(file)}"))
    pairs = existing(given.pairs, "pairs folder")
    out = Path(given.out) if given.out else pairs / "export"
    say_next("train", pairs)
    for name in dict.fromkeys(given.format):
        counts = export(pairs, name, out / name)
        said = ", ".join(f"{file} {count}" for file, count in counts.items())
        say(f"pairs export: {name}: {said} rows in {out / name}")
    return 0


def _questions(file: Path, names: list[str], out: Path) -> int:
    """Writes the questions as the prompts of verl's reinforcement learning. Raises ConfigError for another format."""
    if set(names) != {"verl"}:
        raise ConfigError("--questions is for --format verl alone")
    path = out / "verl" / f"{file.stem}.parquet"
    with ExitStack() as stack:
        count = _write_parquet("questions", path, map(verl_question, read_questions(file)), stack)
    say(f"pairs export: verl: {counted(count, 'question')} in {path}")
    say_next("train", "--stage", "grpo", "--questions", file)
    return 0


def _trees(given: argparse.Namespace) -> int:
    """Writes what trees teach a retriever. Raises ConfigError for another format."""
    if not given.trees or set(given.format) != {"embedding"} or not given.corpus:
        raise ConfigError("--format embedding is made of --trees RUN and --corpus FILE, and alone")
    trees, corpus = [trees_file(run) for run in given.trees], existing(given.corpus, "corpus")
    out = out_beside(given, Path(given.trees[0]), "export") / "embedding"
    counts = export_embedding(trees, corpus / "passages.jsonl" if corpus.is_dir() else corpus, out)
    say(f"pairs export: embedding: {', '.join(f'{name} {count}' for name, count in counts.items())} in {out}")
    say_next("train", out, "--stage", "retriever")
    return 0


def export(folder: Path, name: str, out: Path) -> dict[str, int]:
    """Writes one format; returns rows by file. Its files appear together, or none. Files without rows are left out.

    Raises DataError with file and line for a row that the format cannot hold.
    """
    files = {(kind, split): folder / f"{kind}.{split}.jsonl" for kind in ("pairs", "sft") for split in ("train", "val")}
    found = {which: file for which, file in files.items() if file.is_file() and file.stat().st_size}
    if not found:
        raise ConfigError(f"{folder} holds no pairs and no supervised steps to export")
    with ExitStack() as stack:
        return _proguide(found, out, stack) if name == "proguide" else _both_kinds(name, found, out, stack)


Found = dict[tuple[str, str], Path]


def _rows(path: Path, cls: type[Any], convert: Callable[[Any], dict[str, Any]]) -> Rows:
    for number, row in read_rows(path):
        record = from_dict(cls, row, path, number)
        try:
            _check_replies(record)
            yield convert(record)
        except ValueError as error:
            raise DataError(path, str(error), line=number) from None


def _write_lines(path: Path, rows: Rows, stack: ExitStack) -> int:
    stream, count = stack.enter_context(written_whole(path)), 0
    for row in rows:
        stream.write(dump_line(row) + "\n")
        count += 1
    return count


def _both_kinds(name: str, found: Found, out: Path, stack: ExitStack) -> dict[str, int]:
    """A format that has a place for pairs and for supervised steps: a file for each file of the folder."""
    pair, step = {"llamafactory": (llamafactory_pair, llamafactory_step), "openai": (openai_pair, openai_step),
                  "verl": (verl_pair, verl_step)}[name]  # fmt: skip
    counts, entries = {}, {}
    for (kind, split), path in found.items():
        rows = _rows(path, Pair, pair) if kind == "pairs" else _rows(path, Trajectory, step)
        file = f"{path.stem}.parquet" if name == "verl" else path.name
        write = partial(_write_parquet, kind) if name == "verl" else _write_lines
        counts[file] = write(out / file, rows, stack)
        entries[f"steprag_{kind}_{split}"] = llamafactory_entry(file, ranking=kind == "pairs")
    if name == "llamafactory":
        write_json(out / "dataset_info.json", entries)
    return counts


def _write_parquet(kind: str, path: Path, rows: Rows, stack: ExitStack) -> int:
    import pyarrow
    import pyarrow.parquet

    stream, rows, count = stack.enter_context(written_whole(path, "wb")), iter(rows), 0
    with pyarrow.parquet.ParquetWriter(stream, _schema(kind)) as writer:
        while batch := list(islice(rows, PARQUET_ROWS)):
            writer.write_table(pyarrow.Table.from_pylist(batch, _schema(kind)))
            count += len(batch)
    return count


def _schema(kind: str) -> Any:
    """Written out, so that a batch without a reward has the columns of all others."""
    import pyarrow as pa

    messages = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    truth = pa.struct([("style", pa.string()), ("ground_truth", pa.struct([("target", pa.list_(pa.string()))]))])
    whose = [("question_id", pa.string())]
    step = [("action", pa.string()), ("depth", pa.int64()), ("tree", pa.string())]
    ids = [("chosen_node", pa.int64()), ("rejected_node", pa.int64())]
    rewards = [("chosen_reward", pa.float64()), ("rejected_reward", pa.float64())]
    known, steps = {
        "pairs": ([*whose, *step, *ids, *rewards], [("chosen", pa.string()), ("rejected", pa.string())]),
        "sft": ([*whose, *step, ("node", pa.int64()), ("outcome", pa.float64())], [("messages", messages)]),
        "questions": (whose, []),
    }[kind]
    return pa.schema(
        [("data_source", pa.string()), ("prompt", messages), ("ability", pa.string()), ("reward_model", truth),
         ("extra_info", pa.struct(known)), *steps]
    )  # fmt: skip


def _proguide(found: Found, out: Path, stack: ExitStack) -> dict[str, int]:
    """The ten fields, laid out as the published file: a JSON array, indented by two, ASCII."""
    counts, entries = {}, {}
    for (kind, split), path in found.items():
        if kind != "pairs":  # the format has no place for supervised steps
            continue
        file = "RAG_ProGuide.json" if split == "train" else "RAG_ProGuide.val.json"
        stream, count = stack.enter_context(written_whole(out / file)), 0
        for row in _rows(path, Pair, to_row):
            stream.write((",\n" if count else "[\n") + textwrap.indent(json.dumps(row, indent=2), "  "))
            count += 1
        stream.write("\n]")
        counts[file] = count
        entries[file.removesuffix(".json").replace(".", "_")] = proguide_entry(file)
    if not counts:
        raise ConfigError("a RAG_ProGuide file holds pairs, and the folder has none")
    write_json(out / "dataset_info.json", entries)
    return counts


def openai_pair(pair: Pair) -> dict[str, Any]:
    """OpenAI's preference fine-tuning (method `dpo`)."""
    return {
        "input": {"messages": list(pair.prompt), "tools": [], "parallel_tool_calls": True},
        "preferred_output": list(pair.chosen),
        "non_preferred_output": list(pair.rejected),
    }


def openai_step(step: Trajectory) -> dict[str, Any]:
    """OpenAI's supervised fine-tuning."""
    return {"messages": [*step.prompt, *step.completion]}


def verl_pair(pair: Pair) -> dict[str, Any]:
    """verl's Parquet row: its columns for prompts with a ground truth, and the two steps beside them."""
    provenance = {"tree": pair.tree, "chosen_node": pair.chosen_node, "rejected_node": pair.rejected_node,
                  "chosen_reward": pair.chosen_reward, "rejected_reward": pair.rejected_reward}  # fmt: skip
    return {**_of_step(pair, provenance), "chosen": pair.chosen[0]["content"], "rejected": pair.rejected[0]["content"]}


def verl_step(step: Trajectory) -> dict[str, Any]:
    """verl's Parquet row for supervised training: `messages`, beside the columns of a prompt with a ground truth."""
    provenance = {"tree": step.tree, "node": step.node, "outcome": step.outcome}
    return {**_of_step(step, provenance), "messages": [*step.prompt, *step.completion]}


def verl_question(question: Question) -> dict[str, Any]:
    """verl's Parquet row for reinforcement learning with a tool `search`: the question, and its golden answers."""
    asked = [{"role": "system", "content": VERL_SYSTEM}, {"role": "user", "content": question.question}]
    known = {"question_id": question.id}
    return _verl_columns(question.dataset or "steprag", asked, question.golden_answers, known)


def _of_step(row: Pair | Trajectory, provenance: dict[str, Any]) -> dict[str, Any]:
    known = {"question_id": row.question_id, "action": row.action, "depth": row.depth, **provenance}
    return _verl_columns(row.source, list(row.prompt), row.golden_answers, known)


def _verl_columns(source: str, prompt: list[Any], golden: Sequence[str], known: dict[str, Any]) -> dict[str, Any]:
    truth = {"style": "rule", "ground_truth": {"target": list(golden)}}
    return {"data_source": source, "prompt": prompt, "ability": "agentic-rag", "reward_model": truth,
            "extra_info": known}  # fmt: skip


def llamafactory_pair(pair: Pair) -> dict[str, Any]:
    """LLaMA-Factory's ShareGPT ranking row."""
    row = _sharegpt(pair.prompt)
    replies = {"chosen": pair.chosen, "rejected": pair.rejected}
    return {**row, **{name: _turn(*messages) for name, messages in replies.items()}}


def llamafactory_step(step: Trajectory) -> dict[str, Any]:
    """LLaMA-Factory's ShareGPT row for supervised training."""
    row = _sharegpt(step.prompt)
    return {**row, "conversations": [*row["conversations"], *map(_turn, step.completion)]}


def _sharegpt(prompt: tuple[Message, ...]) -> dict[str, Any]:
    """System prompt and turns under the rules of LLaMA-Factory's converter, which drops what breaks them."""
    if not prompt or prompt[0]["role"] != "system" or not prompt[0]["content"]:
        raise ValueError("no system message: LLaMA-Factory would put its template's own there")
    turns = prompt[1:]
    wanted = ["user" if place % 2 == 0 else "assistant" for place in range(len(turns))]
    if len(turns) % 2 == 0 or [turn["role"] for turn in turns] != wanted:
        raise ValueError("after the system message, turns must alternate from user to user")
    return {"system": prompt[0]["content"], "conversations": [_turn(turn) for turn in turns]}


def _check_replies(record: Pair | Trajectory) -> None:
    """Raises ValueError for a reply that is not one assistant message with text."""
    for name in ("completion",) if isinstance(record, Trajectory) else ("chosen", "rejected"):
        messages: tuple[Message, ...] = getattr(record, name)
        if [message["role"] for message in messages] != ["assistant"] or not messages[0]["content"].strip():
            raise ValueError(f"{name} must be one assistant message with text")


def _turn(message: Message) -> dict[str, str]:
    return {"from": _SHAREGPT[message["role"]], "value": message["content"]}


def llamafactory_entry(file_name: str, ranking: bool) -> dict[str, Any]:
    """The entry of `dataset_info.json` for a file of the rows above."""
    columns = {"messages": "conversations", "system": "system"}
    if ranking:
        columns |= {"chosen": "chosen", "rejected": "rejected"}
    tags = {"role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt"}
    ranked: dict[str, Any] = {"ranking": True} if ranking else {}
    return {"file_name": file_name, "formatting": "sharegpt", **ranked, "columns": columns, "tags": tags}


def proguide_entry(file_name: str) -> dict[str, Any]:
    """The entry of `dataset_info.json` for a ten-field file; its `instruction` is mapped to the system prompt.

    LLaMA-Factory's own default would join `instruction` and `input` in the user turn.
    """
    columns = {"system": "instruction", "prompt": "input", "chosen": "chosen", "rejected": "rejected"}
    return {"file_name": file_name, "ranking": True, "columns": columns}
