"""`steprag pairs import`: a published RAG_ProGuide.json to canonical pairs and the prompt profile of its prompts.

The file is read twice, as a stream: once for the prompts, once for the pairs. Every prompt is rendered anew from the
profile, so that what a model is trained on is what `steprag infer --prompt.profile DIR/rag_proguide.yaml` shows it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from preference.config import FolderConfig
from preference.exchange.proguide import (
    ACTIONS,
    LACKS,
    ProfileFinder,
    action_type,
    allowed_in,
    content,
    parse_user,
    profile_text,
    read_rows,
)
from preference.exchange.push import add_push_option, push_if_asked
from preference.pairs_folder import made_folder
from steprag.agent.inert import CONTROL_TOKEN
from steprag.agent.profiles import PromptProfile, load_profile
from steprag.cli import guarded
from steprag.config.load import add_options, config_from, parse_arguments
from steprag.console.progress import say
from steprag.errors import quoted
from steprag.records.jsonl import dump_line, existing, file_hash, line_hash, written_whole
from steprag.records.training_rows import Pair
from steprag.runs.run import open_run
from steprag.scores.metrics import normalise
from steprag.types import Message, Question

SOURCE = "RAG_ProGuide"
PROFILE = "rag_proguide.yaml"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="steprag pairs import", description="A published RAG_ProGuide.json to canonical pairs and their prompts."
    )
    parser.add_argument("file", metavar="RAG_ProGuide.json", help="JSON array of ten-field rows")
    parser.add_argument("--out", required=True, metavar="DIR", help="pairs folder; also gets rag_proguide.yaml")
    add_push_option(parser)
    add_options(parser, FolderConfig)
    given = parse_arguments(parser, argv)
    import_file(config_from(FolderConfig, given), existing(given.file, "RAG_ProGuide file"), Path(given.out))
    push_if_asked(given, Path(given.out))
    return 0


def import_file(config: FolderConfig, path: Path, out: Path) -> None:
    """Writes the pairs folder, the profile, and `refused.jsonl` with every row that is no pair and why."""
    identity = {"file": file_hash(path), **config.identity}
    with open_run(out, "pairs", identity=identity, config=config.model_dump()) as run:
        profile = _extract(path, out / PROFILE)
        with made_folder("pairs import", run, config, ("pairs",), profile.grammar, profile.identity) as folder:
            refused, counts = folder.file("refused.jsonl"), folder.counts
            for number, row in read_rows(path):
                counts["rows"] += 1
                reason = problem(row)
                if reason:
                    counts["refused"] += 1
                    refused.write(dump_line({"row": number, "reason": reason, **row}) + "\n")
                else:
                    question, pair = to_pair(row, profile)
                    counts["prompts_byte_for_byte"] += _rendered_alike(pair, row)
                    folder.add(question, [pair])
            folder.facts["source"] = {"file": {"name": path.name, "sha256": identity["file"]}, "lacks": list(LACKS),
                                      "question_sources": dict(folder.sources)}  # fmt: skip
    alike = counts["prompts_byte_for_byte"]
    say(
        f"pairs import: {counts['rows'] - counts['refused']} of {counts['rows']} rows are pairs (others: "
        f"refused.jsonl); {alike} prompts are the file's byte for byte, the others as {PROFILE} renders them\n"
        f"pairs import: the file lacks {', '.join(LACKS)}: it cannot be re-scored or cut by margin\n"
        f"pairs import: generate and infer with its prompts by --prompt.profile {out / PROFILE}"
    )


def _extract(path: Path, out: Path) -> PromptProfile:
    """The profile of the file's prompts, written to `out`. Raises DataError where it has none."""
    finder = ProfileFinder()
    for _, row in read_rows(path):
        if shown := parse_user(row["input"]):
            finder.add(row["instruction"], shown)
    with written_whole(out) as stream:
        stream.write(profile_text(finder.profile(path), path))
    return load_profile(str(out))


def _rendered_alike(pair: Pair, row: dict[str, Any]) -> bool:
    return [message["content"] for message in pair.prompt] == [row["instruction"], row["input"]]


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
    identity = f"{SOURCE}-{line_hash(normalise(question))}"
    pair = Pair(
        prompt=profile.render(shown.state, allowed_in(shown.turn)),
        chosen=(Message(role="assistant", content=row["chosen"]),),
        rejected=(Message(role="assistant", content=row["rejected"]),),
        question_id=identity,
        tree=None,
        chosen_node=None,
        rejected_node=None,
        action=ACTIONS[row["chosen_action_type"]],
        rejected_action=ACTIONS.get(row["rejected_action_type"], ""),
        depth=row["layer"] + 1,
        chosen_reward=None,
        rejected_reward=None,
        margin=None,
        chosen_visits=None,
        rejected_visits=None,
        source=SOURCE,
    )
    return Question(identity, question, (), {"dataset": SOURCE}), pair


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
