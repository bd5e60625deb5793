"""`steprag pairs people`: what people did in conversations as training data: steps that they wrote in place of the
policy's become pairs, answers that they gave become questions.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

from preference.config import FolderConfig
from preference.exchange.unscored import unscored_pair
from preference.pairs_folder import made_folder
from steprag.agent.profiles import grammar_of
from steprag.config.load import add_options, config_from, parse_arguments
from steprag.config.recipes import out_of
from steprag.console.progress import say, say_next
from steprag.errors import counted
from steprag.records.jsonl import dump_line, existing, file_hash, read_records
from steprag.records.training_rows import PEOPLE, HumanPair, Pair
from steprag.records.turns import Turn
from steprag.runs.run import add_overwrite_option, open_run, read_manifest
from steprag.scores.gold import people_id
from steprag.types import Question

CORRECTIONS = "corrections.jsonl"
NO_EVIDENCE_OF_STRANGERS = "shows no passage of the web"
"""The rule that leaves out pairs whose prompt a stranger's page may have shaped."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="steprag pairs people", description="Conversations to pairs (changed steps) and questions (corrections)."
    )
    parser.add_argument("run", metavar="RUN", help="run folder of steprag serve")
    parser.add_argument("--out", metavar="DIR", help="pairs folder; also gets corrections.jsonl [runs/people-RUN]")
    parser.add_argument("--web", action="store_true", help="keep pairs whose prompts show passages of the web")
    add_overwrite_option(parser)
    add_options(parser, FolderConfig)
    given = parse_arguments(parser, argv)
    config, folder = config_from(FolderConfig, given), existing(given.run, "run folder")
    from_people(config, folder, out_of(given, "people", folder), web=given.web, overwrite=given.overwrite)
    return 0


def from_people(config: FolderConfig, run_folder: Path, out: Path, *, web: bool, overwrite: bool | None = None) -> None:
    """Writes the pairs folder and the corrections. Raises ConfigError where the folder is none of steprag serve."""
    manifest = read_manifest(run_folder, "identity", "config")
    turns_file = existing(run_folder / "turns.jsonl", "turns of the conversations")
    turns = {turn.id: turn for turn in read_records(turns_file, Turn)}
    preferred = run_folder / "preferred.jsonl"
    sources = {file.name: file_hash(file) for file in (turns_file, preferred) if file.exists()}
    identity = {"turns": sources, "web": web, **config.identity}
    with open_run(out, "pairs", identity=identity, config=config.model_dump(), overwrite=overwrite) as run:
        words, prompt = dict[str, str](), manifest["identity"].get("prompt")
        with made_folder("pairs people", run, config, ("pairs",), grammar_of(manifest), prompt) as folder:
            folder.facts["source"] = {"run": run_folder.name}
            for row in read_records(preferred, HumanPair) if preferred.exists() else ():
                folder.counts["changed_steps"] += 1
                if web or folder.rules.count(NO_EVIDENCE_OF_STRANGERS, not row.web):
                    question = words.setdefault(people_id(row.question), row.question)
                    folder.add(*to_pair(row, question, turns.get(row.turn)))
            stream = folder.file(CORRECTIONS)
            for question in corrections(turns.values()):
                folder.counts["corrections"] += 1
                stream.write(dump_line(question) + "\n")
    changed, corrected, file = folder.counts["changed_steps"], folder.counts["corrections"], run.path / CORRECTIONS
    asked = counted(corrected, "question")
    say(f"pairs people: {counted(changed, 'changed step')}; {asked} with a person's answer in {file}")
    say_next(*(("train", run.path) if changed else ("generate", file) if corrected else ("serve",)))


def to_pair(row: HumanPair, question: str, turn: Turn | None) -> tuple[Question, list[Pair]]:
    """A changed step as a pair: the person's step is chosen. `question`: its words, one spelling for each id. `turn`:
    the one that went on from it, where it ended.
    """
    asked = Question(people_id(question), question, turn.golden_answers if turn else (), {"dataset": PEOPLE})
    actions = row.action, row.rejected_action
    return asked, [unscored_pair(asked, row.prompt, (row.chosen, row.rejected), actions, row.step + 1)]


def corrections(turns: Iterable[Turn]) -> Iterator[Question]:
    """The questions that people answered, each once: the last answer counts."""
    answered: dict[str, Question] = {}
    for turn in turns:
        if turn.golden_answers:
            identity = people_id(turn.question)
            answered[identity] = Question(identity, turn.question, turn.golden_answers, {"dataset": PEOPLE})
    yield from answered.values()
