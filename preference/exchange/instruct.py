"""`steprag pairs instruct`: plain instruction data (Alpaca, ShareGPT, messages) as supervised steps of any grammar.

Each reply becomes the shortest episode that ends: its reasoning goes where the grammar has a place for it, its answer
into the action that ends. Earlier turns of a conversation stand before the prompt as they would have been written.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from preference.config import FolderConfig
from preference.pairs_folder import made_folder
from steprag.agent.grammar import START, Grammar
from steprag.agent.inert import neutralise
from steprag.agent.profiles import PromptProfile, load_profile
from steprag.agent.stack import Action
from steprag.batch.datasets import questions_at
from steprag.config.load import add_options, config_from, parse_arguments
from steprag.config.recipes import out_of
from steprag.config.sections import EpisodeConfig, PromptConfig
from steprag.console.progress import say, say_next
from steprag.engines.reasoning import MARKS, split
from steprag.errors import ConfigError, DataError, StepFormatError
from steprag.records.jsonl import dump_line, file_hash, line_hash
from steprag.records.left_out import LeftOut, as_json, columns_not_read, say_left_out
from steprag.records.rows import read_any_rows
from steprag.records.talks import CONTEXT, Talk, TalkTurn, talk_of
from steprag.records.training_rows import Trajectory
from steprag.runs.run import add_overwrite_option, open_run
from steprag.types import Completion, Message, Question, State

_SOLUTION = re.compile(r"\s*<\|begin_of_thought\|>(?P<thought>.*?)<\|end_of_thought\|>\s*<\|begin_of_solution\|>"
                       r"(?P<answer>.*?)(?:<\|end_of_solution\|>\s*)?\Z", re.DOTALL)  # fmt: skip
"""OpenThoughts' marks of reasoning and answer."""
DEPTH: int = EpisodeConfig.model_fields["depth"].default


class InstructConfig(FolderConfig):
    """What decides the steps: the prompts that they follow, and which rows are kept for validation."""

    prompt: PromptConfig = Field(default_factory=PromptConfig)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="steprag pairs instruct", description="Instruction data to supervised steps of a prompt profile's grammar."
    )
    parser.add_argument("file", metavar="FILE", help="rows of Alpaca, ShareGPT or messages; also hub:OWNER/NAME")
    parser.add_argument("--out", metavar="DIR", help="pairs folder, with sft.train.jsonl [runs/instruct-FILE]")
    add_overwrite_option(parser)
    add_options(parser, InstructConfig)
    given = parse_arguments(parser, argv)
    file = questions_at(given.file, None, "instruction file")
    out = out_of(given, "instruct", file)
    import_rows(config_from(InstructConfig, given), file, out, given.overwrite)
    return 0


def import_rows(config: InstructConfig, file: Path, out: Path, overwrite: bool | None = None) -> None:
    """Writes the pairs folder, and `refused.jsonl` with every row that gives no step and why. Raises ConfigError, and
    DataError where no row gives one.
    """
    profile = load_profile(config.prompt.profile, config.prompt.examples)
    if profile.words.turns or profile.words.search_first:
        raise ConfigError(f"profile {profile.name} cannot show a plain question; take another prompt.profile")
    identity = {"file": file_hash(file), **config.identity, "prompt": profile.identity}
    refused, unread = dict[str, list[int]](), dict[str, int]()
    seen, counts, gone = set[str](), Counter[str](), list[LeftOut]()
    with (
        open_run(out, "pairs", identity=identity, config=config.model_dump(), overwrite=overwrite) as run,
        made_folder("pairs instruct", run, config, ("sft",), profile.grammar, profile.identity) as folder,
    ):
        others = folder.file("refused.jsonl")
        for number, row in read_any_rows(file, gone):
            counts["rows"] += 1
            name = f"instruct-{line_hash(json.dumps(row))}"
            try:
                if name in seen:
                    raise ValueError("the same as an earlier row")
                talk = talk_of(row)
                steps = steps_of(talk, profile, name, counts)
            except (ValueError, StepFormatError) as error:
                reason = f"refused by the grammar: {error.reason}" if isinstance(error, StepFormatError) else str(error)
                refused.setdefault(reason, []).append(number)
                others.write(dump_line({"line": number, "reason": reason, "row": row}) + "\n")
                continue
            seen.add(name)
            unread = {**dict.fromkeys(talk.unread, number), **unread}
            folder.add(Question(name, talk.turns[0].asked.strip(), (), {"dataset": file.name}), steps)
        why = "; ".join(f"{len(at):,} {reason} (first: {at[0]})" for reason, at in refused.items())
        if not seen:
            raise DataError(file, f"no row of {counts['rows']:,} gives a step: {why or 'it is empty'}")
        folder.counts.update(counts)
        gone += columns_not_read(unread, file)
        rows = (LeftOut(reason, f"{file}:{at[0]}", "refused.jsonl", len(at)) for reason, at in refused.items())
        run.set(left_out=as_json([*gone, *rows]))
        folder.facts["source"] = {"file": {"name": file.name, "sha256": identity["file"]},
                                  "refused": {reason: len(at) for reason, at in refused.items()}}  # fmt: skip
    say_left_out(gone)
    notes = [f"; {counts[name]:,} {name}" for name in (NO_PLACE, ONE_LINE, f"replies {CONTEXT}") if counts[name]]
    say(f"pairs instruct: {len(seen):,} of {counts['rows']:,} rows are steps of {profile.grammar.name}{''.join(notes)}"
        f"{'; in refused.jsonl: ' if why else ''}{why}")  # fmt: skip
    say_next("train", run.path, "--stage", "sft")


def told_apart(turn: TalkTurn) -> tuple[str, str]:
    """The reasoning and the answer in a reply: what a thinking model wrote before it, or GSM8K's before ####. Raises
    ValueError where there is none.
    """
    if not (turn.asked.strip() and turn.reply.strip()):
        raise ValueError("an empty output" if turn.asked.strip() else "an empty question")
    marked = _SOLUTION.match(turn.reply)
    before, answer = (marked["thought"].strip(), marked["answer"]) if marked else split(turn.reply)
    reasoning, divided, final = f"\n{answer}".rpartition("\n####")  # as in GSM8K
    if divided and final.strip() and "\n" not in final.strip():
        before, answer = "\n".join(filter(None, (before, reasoning.strip()))), final.strip()
    if not answer.strip():
        raise ValueError("reasoning without an answer")
    for opening, _, _ in MARKS:
        before = opening.sub("", before)
    return (turn.thought or before).strip(), answer.strip()


NO_PLACE = "reasonings that the grammar has no place for"
ONE_LINE = "contents put into one line (lines: true of an action keeps them)"


def steps_of(talk: Talk, profile: PromptProfile, name: str, counts: Counter[str]) -> list[Trajectory]:
    """The steps of all turns that are learned, each with its prompt. Raises StepFormatError for one that the grammar
    refuses, and ValueError where it wants reasoning and there is none.
    """
    before, rows = list[Message](), list[Trajectory]()
    for turn in talk.turns:
        (thought, answer), asked = told_apart(turn), turn.asked.strip()
        state = State(asked)
        for text in tagged(turn.reply, profile.grammar) or [*written(thought, answer, profile.grammar, counts)]:
            allowed = profile.grammar.allowed(state.steps, DEPTH)
            step = profile.grammar.parse(Completion(text, "stop"), allowed)
            shown = profile.render(state, allowed)
            own = shown[0]["content"] if shown[0]["role"] == "system" else ""
            words = "\n\n".join(filter(None, (own, neutralise(talk.system))))
            told = [Message(role="system", content=words)] if words else []
            prompt = (*told, *before, *(message for message in shown if message["role"] != "system"))
            if told and profile.words.system_role == "user":
                prompt = (Message(role="user", content=f"{words}\n\n{prompt[1]['content']}"), *prompt[2:])
            said = (Message(role="assistant", content=text),)
            rows += [Trajectory(prompt, said, name, step.action, len(state.steps) + 1, "instruct")] * turn.learned
            state = State(asked, (*state.steps, step), (), (*state.earlier, ()))
        counts[f"replies {CONTEXT}"] += not turn.learned
        if not profile.grammar.action(state.steps[-1].action).terminal:
            raise ValueError("an output in the grammar's tags that does not end")
        shown = profile.render(State(asked), profile.grammar.allowed((), DEPTH))
        before += [message for message in shown if message["role"] != "system"]
        before.append(Message(role="assistant", content="\n".join(step.text for step in state.steps)))
    return rows


def tagged(reply: str, grammar: Grammar) -> list[str]:
    """The steps of a reply that is in the grammar's tags already, none of another."""
    closings = "|".join(re.escape(action.closing) for action in grammar.actions)
    *parts, rest = re.split(f"({closings})", reply.rstrip())
    return [] if rest else [f"{text}{closing}".strip() for text, closing in zip(parts[::2], parts[1::2], strict=True)]


def written(thought: str, answer: str, grammar: Grammar, counts: Counter[str]) -> Iterator[str]:
    """The completions of one reply. Reasoning stands in the thought's own tags; else in an action that keeps and may
    come first; else in free words before the answer, where the grammar has some.
    """
    end, start, tags = grammar.answer, grammar.transitions[START], grammar.thought_tags
    keeps = next((one for one in grammar.actions if one.name in start and one.keeps and not one.terminal
                  and end.name in grammar.transitions[one.name]), None)  # fmt: skip
    if end.name not in start and not (keeps and thought):
        raise ValueError("no reasoning, which the grammar wants before the answer")
    if thought and keeps and not (tags and end.name in start):
        yield _said(keeps, thought, counts)
        thought = ""
    counts[NO_PLACE] += bool(thought) and not (tags or end.thought)
    thought *= bool(tags or end.thought)
    inert = thought.replace("<", "‹")
    before = f"{tags[0]}{inert}{tags[1]}" if tags else f"{' '.join(inert.split())} "
    yield before * bool(thought) + _said(end, answer, counts)


def _said(action: Action, content: str, counts: Counter[str]) -> str:
    if action.lines:
        return f"{action.head} {content} {action.closing}"
    counts[ONE_LINE] += "\n" in content
    return action.head + action.tail(content)
