"""`steprag pairs import`: a published RAG_ProGuide.json to canonical pairs and the prompt profile of its prompts; and
its ten-field rows (arXiv 2505.14069) written, read and checked.

A row's user turn is "Question: {question}", then in later states "\\nPrevious Thoughts: " with the steps joined by
spaces, and for an evidence step ". Reference: <reference>" with the passages. These marks tell which prompt is shown.

The file is read twice: once for the prompts, before anything is written, once for the pairs. Every prompt is rendered
anew from the profile, so that what a model is trained on is what `steprag infer --prompt.profile
DIR/rag_proguide.yaml` shows it.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from preference.config import FolderConfig
from preference.exchange.unscored import unscored_pair
from preference.pairs_folder import add_push_option, made_folder, push_if_asked
from steprag.agent import grammars
from steprag.agent.inert import CONTROL_TOKEN
from steprag.agent.profiles import PromptProfile, load_profile
from steprag.batch.datasets import HUB
from steprag.config.load import add_options, config_from, parse_arguments
from steprag.config.recipes import out_of
from steprag.console.progress import say, say_next
from steprag.engines.pretrained import fetched
from steprag.errors import ConfigError, DataError, quoted
from steprag.records.jsonl import dump_line, existing, file_hash, line_hash, read_value, written_whole
from steprag.records.jsonl import read_rows as read_lines_of_json
from steprag.records.left_out import LeftOut, as_json, merged, say_left_out
from steprag.records.packed import line_bytes, open_bytes
from steprag.records.talks import form_of
from steprag.records.training_rows import Pair
from steprag.runs.run import add_overwrite_option, open_run
from steprag.scores.metrics import normalise
from steprag.types import Passage, Question, State, Step

SOURCE = "RAG_ProGuide"
PROFILE = "rag_proguide.yaml"
FIELDS = ("instruction", "input", "prompt", "chosen", "rejected", "chosen_action_type", "chosen_content",
          "rejected_action_type", "rejected_content", "layer")  # fmt: skip
TYPES = {"query": "Query Generation", "evidence": "Evidence Extraction", "answer": "Answer Generation"}
ACTIONS = {name: action for action, name in TYPES.items()}
LACKS = ("question ids (made from the question's text)", "golden answers", "rewards and margins", "visits",
         "trees and nodes", "the prompt at the depth limit")  # fmt: skip

LONGEST = 8
"""A file may have as many times the bytes that a line may have: the published one has some 200 MB."""

_QUESTION = "Question: "
_THOUGHTS = "\nPrevious Thoughts: "
_REFERENCE = ". Reference: <reference>"
_CLOSE = "</reference>"
_TITLE = "Wikipedia Title: "
_BETWEEN = re.compile(r"(</(?:query|evidence|answer)>\.?) ")
_PASSAGE = re.compile(
    rf"{_TITLE}(?P<title>[^\n]*+)(?:\n(?P<text>(?:[^\n]++|\n(?!\n(?:{_TITLE}|\Z)))*+)(?P<end>\n\n)?)?"
)
"""A passage, and all the rest where its `end` is missing: no other one ends either."""
_TURN = {"start": "start", "evidence": "evidence", "reasoning": "query|answer"}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="steprag pairs import", description="A published RAG_ProGuide.json to canonical pairs and their prompts."
    )
    parser.add_argument("file", metavar="FILE", help="RAG_ProGuide.json, an array of ten-field rows; or hub:OWNER/NAME")
    parser.add_argument("--out", metavar="DIR", help="pairs folder; also gets rag_proguide.yaml [runs/pairs-FILE]")
    add_overwrite_option(parser)
    add_push_option(parser)
    add_options(parser, FolderConfig)
    given = parse_arguments(parser, argv)
    file = existing(_of_hub(given.file) if given.file.startswith(HUB) else given.file, "RAG_ProGuide file")
    made = import_file(config_from(FolderConfig, given), file, out_of(given, "pairs", file), given.overwrite)
    push_if_asked(given, made)
    say_next("train", made)
    return 0


def _of_hub(named: str) -> Path:
    """The JSON file of the data set `hub:OWNER/NAME`, fetched unless it is on this machine; of several the one that is
    called as the data set. Raises ConfigError.
    """
    name = named.removeprefix(HUB)
    folder = fetched(name, ["*.json"], "data set", "dataset")
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.json"))}
    if found := files.get(f"{name.rpartition('/')[2]}.json") or (len(files) == 1 and next(iter(files.values()))):
        return found
    held = ", ".join([*files][:8]) or "none"
    raise ConfigError(f"{named}: no one JSON file of pairs; it has {held} (give one of these in {folder})")


def import_file(config: FolderConfig, path: Path, out: Path, overwrite: bool | None = None) -> Path:
    """Writes the pairs folder, the profile, and `refused.jsonl` with every row that is no pair and why. Returns the
    folder, which `out` may leave to be numbered.
    """
    identity = {"file": file_hash(path), **config.identity}
    words, gone = _extracted(path), list[LeftOut]()
    with open_run(out, "pairs", identity=identity, config=config.model_dump(), overwrite=overwrite) as run:
        with written_whole(run.path / PROFILE) as stream:
            stream.write(words)
        profile = load_profile(str(run.path / PROFILE))
        with made_folder("pairs import", run, config, ("pairs",), profile.grammar, profile.identity) as folder:
            refused, counts = folder.file("refused.jsonl"), folder.counts
            for number, row in read_rows(path):
                counts["rows"] += 1
                reason = malformed(row) or problem(row)
                if reason:
                    counts["refused"] += 1
                    gone.append(LeftOut(f"rows: {reason.split(':')[0]}", f"{path}: row {number}", "refused.jsonl"))
                    what = row if isinstance(row, dict) else {"value": row}
                    refused.write(dump_line({"row": number, "reason": reason, **what}) + "\n")
                else:
                    question, pair = to_pair(row, profile)
                    shown = [message["content"] for message in pair.prompt]
                    counts["prompts_byte_for_byte"] += shown == [row["instruction"], row["input"]]
                    folder.add(question, [pair])
            folder.facts["source"] = {"file": {"name": path.name, "sha256": identity["file"]}, "lacks": list(LACKS),
                                      "question_sources": dict(folder.sources)}  # fmt: skip
        run.set(left_out=as_json(merged(gone)))
    say_left_out(gone)
    alike = counts["prompts_byte_for_byte"]
    say(
        f"pairs import: {counts['rows'] - counts['refused']} of {counts['rows']} rows are pairs (others: "
        f"refused.jsonl); {alike} prompts are the file's byte for byte, the others as {PROFILE} renders them\n"
        f"pairs import: the file lacks {', '.join(LACKS)}: it cannot be re-scored or cut by margin\n"
        f"pairs import: generate and infer with its prompts by --prompt.profile {run.path / PROFILE}"
    )
    return run.path


def _extracted(path: Path) -> str:
    """The profile of the file's prompts, as YAML. Raises DataError where it has none, or no row has its ten fields."""
    finder, wrong, form = ProfileFinder(), "", ""
    for number, row in read_rows(path):
        if reason := malformed(row):
            wrong, form = wrong or f"row {number}: {reason}", form or form_of(row)
        elif shown := parse_user(row["input"]):
            finder.add(row["instruction"], shown)
    if wrong and not any(finder.systems.values()):
        remedy = f"the row is of {form}" if form else "is it a RAG_ProGuide file?"
        raise DataError(path, wrong, remedy=remedy)
    return profile_text(finder.profile(path), path)


def problem(row: dict[str, Any]) -> str | None:
    """Why a row is no pair; None where it is one."""
    if row["prompt"] != f"System: {row['instruction']}\nUser: {row['input']}":
        return "prompt is not instruction and input"
    for side in ("chosen", "rejected"):
        if (action_type(row[side]), content(row[side])) != (row[f"{side}_action_type"], row[f"{side}_content"]):
            return f"{side}: its action or content is not what its text says"
    if row["chosen_action_type"] not in ACTIONS:
        return f"chosen: no action, but {quoted(row['chosen_action_type'])}"
    if row["chosen"] == row["rejected"]:
        return "chosen and rejected are the same text"
    shown = parse_user(row["input"])
    if shown is None:
        return "the user turn has another form"
    written = (row["chosen"], row["rejected"], *(step.text for step in shown.state.steps))
    return "a chat template's control token in a step" if any(map(CONTROL_TOKEN.search, written)) else None


def to_pair(row: dict[str, Any], profile: PromptProfile) -> tuple[Question, Pair]:
    """A row without a problem as a pair, its prompt rendered by `profile`, and the question it shows."""
    shown = parse_user(row["input"])
    if shown is None:
        raise ValueError("the row has a problem")
    question = shown.state.question
    asked = Question(f"{SOURCE}-{line_hash(normalise(question))}", question, (), {"dataset": SOURCE})
    actions = ACTIONS[row["chosen_action_type"]], ACTIONS.get(row["rejected_action_type"], "")
    prompt = profile.render(shown.state, ("evidence",) if shown.turn == "evidence" else ("query", "answer"))
    return asked, unscored_pair(asked, prompt, (row["chosen"], row["rejected"]), actions, row["layer"] + 1)


def to_row(pair: Pair) -> dict[str, Any]:
    """A pair as the published file has it: `layer` counts from 0, `prompt` is system and user turn in one text.

    Raises ValueError for a prompt that is not one system and one user message, which the format cannot hold.
    """
    if [message["role"] for message in pair.prompt] != ["system", "user"]:
        raise ValueError("the format holds one system and one user message")
    system, user = (message["content"] for message in pair.prompt)
    chosen, rejected = pair.chosen[0]["content"], pair.rejected[0]["content"]
    return {
        "instruction": system,
        "input": user,
        "prompt": f"System: {system}\nUser: {user}",
        "chosen": chosen,
        "rejected": rejected,
        "chosen_action_type": action_type(chosen),
        "chosen_content": content(chosen),
        "rejected_action_type": action_type(rejected),
        "rejected_content": content(rejected),
        "layer": pair.depth - 1,
    }


def action_type(completion: str) -> str:
    """The published name of a completion's action, by its opening tag; "Other" without one."""
    return next((name for action, name in TYPES.items() if f"<{action}>" in completion), "Other")


def content(completion: str) -> str:
    """What stands between a completion's tags, looked for as the published builder does: the answer first."""
    for action in ("answer", "query", "evidence"):
        inside, closed, _ = completion.partition(f"<{action}>")[2].partition(f"</{action}>")
        if closed:
            return inside.strip()
    return ""


def read_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Number (from 1) and value of every row of a JSON array, or of JSON Lines. Raises DataError for other files."""
    with open_bytes(path) as stream:
        one_a_line = stream.read(64).lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"{")
    if one_a_line:
        yield from enumerate((row for _, row in read_lines_of_json(path)), 1)
        return
    rows = read_value(path, LONGEST * line_bytes())
    if not isinstance(rows, list):
        raise DataError(path, f"expected a JSON array or JSON Lines, found {type(rows).__name__}")
    yield from enumerate(rows, 1)


def malformed(row: object) -> str | None:
    """Why a row is none of ten fields; None where it is one."""
    if not isinstance(row, dict):
        return f"expected an object, found {type(row).__name__}"
    if missing := [name for name in FIELDS if name not in row]:
        return f"no field {missing[0]!r}"
    for name in FIELDS:
        wanted = int if name == "layer" else str
        if not isinstance(row[name], wanted) or isinstance(row[name], bool):
            return f"{name} is no {'whole number' if wanted is int else 'text'}, but {quoted(row[name])}"
    return None


@dataclass(frozen=True)
class Shown:
    """A row's prompt taken apart: which kind of turn it is, the state it shows, and how titles are quoted."""

    turn: str
    state: State
    title_quotes: bool = False


def parse_user(user: str) -> Shown | None:
    """The state that a user turn shows; None for a text of another form."""
    if not user.startswith(_QUESTION):
        return None
    question, thoughts_mark, rest = user.removeprefix(_QUESTION).partition(_THOUGHTS)
    if not thoughts_mark:
        return Shown("start", State(question))
    thoughts, reference_mark, reference = rest.partition(_REFERENCE)
    if not reference_mark:
        return Shown("reasoning", State(question, _steps(thoughts)))
    passages = [one for one in _PASSAGE.finditer(reference.removesuffix(_CLOSE)) if one["end"]]
    if not passages or not reference.endswith(_CLOSE):
        return None
    titles = [match["title"] for match in passages]
    quoted = all(len(title) > 1 and title[0] == title[-1] == '"' for title in titles)
    bare = [title[1:-1] if quoted else title for title in titles]
    found = tuple(Passage("", title, match["text"]) for title, match in zip(bare, passages, strict=True))
    return Shown("evidence", State(question, _steps(thoughts), found[::-1]), quoted)  # shown worst first


def _steps(thoughts: str) -> tuple[Step, ...]:
    """The steps so far, cut at the one space after each closing tag, so that joining them gives the text again."""
    pieces = [*_BETWEEN.split(thoughts), ""]
    texts = [text + tag for text, tag in zip(pieces[::2], pieces[1::2], strict=True)]
    return tuple(Step(ACTIONS.get(action_type(text), "other"), text, content(text)) for text in texts)


class ProfileFinder:
    """Collects the system prompt of every kind of turn; `profile` is the YAML file that renders them."""

    def __init__(self) -> None:
        self.systems = {turn: Counter[str]() for turn in _TURN}
        self._quoted = [0, 0]

    def add(self, system: str, shown: Shown) -> None:
        """Counts a row's system prompt for its turn, and how its titles are quoted."""
        self.systems[shown.turn][system] += 1
        if shown.state.passages:
            self._quoted[shown.title_quotes] += 1

    def profile(self, path: Path) -> dict[str, Any]:
        """The profile's keys, with each turn's most frequent system prompt. Raises DataError where a turn has no row.

        The published trees never give a pair at the depth limit, so the prompt used there is the reasoning turn's.
        """
        for turn, counts in self.systems.items():
            if not counts:
                raise DataError(path, f"no row shows a prompt of the {turn} turn, so no profile can be made of it")
        system = {turn: max(counts, key=lambda text: (counts[text], text)) for turn, counts in self.systems.items()}
        later = _QUESTION + "{question}" + _THOUGHTS + "{steps}"
        users = {"start": _QUESTION + "{question}", "reasoning": later,
                 "evidence": later + _REFERENCE + "{passages}" + _CLOSE}  # fmt: skip
        turns = {_TURN[turn]: {"system": system[turn], "user": users[turn]} for turn in _TURN}
        title = '"{title}"' if self._quoted[True] > self._quoted[False] else "{title}"
        return {
            "grammar": grammars.PROGUIDE.name,
            "passage": f"{_TITLE}{title}\n{{text}}\n\n",
            "order": "best_last",
            "between": " ",
            "between_passages": "",
            "turns": {**turns, "answer": dict(turns["query|answer"])},
        }


def profile_text(profile: dict[str, Any], source: Path) -> str:
    """The profile as a YAML file; scalars are quoted, so that every byte of a prompt survives."""
    head = (
        f"# Prompts extracted from {source.name} (SHA-256 {file_hash(source)}): one system prompt a turn.\n"
        "# The file holds no prompt for the depth limit (`answer`); the reasoning turn's stands there.\n"
        "# Passages go worst first, as its trees were grown.\n"
    )
    return head + yaml.safe_dump(profile, sort_keys=False, allow_unicode=True, default_style='"', width=10**9)
