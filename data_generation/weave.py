"""`steprag trees weave`: detours that a search went, and the way back, as worked episodes of an agent that can go back.

A tree goes back for free: where one search failed, its sibling was tried. Woven together they are an episode: the
failed search, a step back, the better sibling and its way to a right answer. What a step takes back is shown and not
learnt (as Self-Backtracking masks its loss, arXiv 2502.04404). `steprag trees worked` makes supervised steps of the
episodes."""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_generation.worked import WorkedEpisode, WorkedStep
from steprag.agent import grammars
from steprag.agent.grammar import Grammar
from steprag.agent.profiles import grammar_of_tree
from steprag.agent.stack import popped
from steprag.batch.tree_results import trees_file
from steprag.config.load import parse_arguments
from steprag.config.recipes import RUNS, stem_of
from steprag.console.progress import say, say_next
from steprag.errors import ConfigError, counted
from steprag.records.jsonl import read_records, write_records
from steprag.runs.run import run_of
from steprag.scores.gold import gold_of
from steprag.tree import Node, Tree, children_of, path_to
from steprag.types import Step

NOTES = ("this does not tell it; ask otherwise", "not what is needed; another search", "no fact here; search again")
"""What a woven step back says; a note of its own would need a model."""
NOTHING = ("none", "nothing", "unknown")
"""Evidence that keeps nothing."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="steprag trees weave", description="Detours of finished trees as worked episodes of the stack agent"
    )
    parser.add_argument("--trees", required=True, metavar="RUN", help="run folder of steprag generate, or its trees")
    parser.add_argument("--out", metavar="FILE", help="worked episodes, JSON Lines [runs/woven-RUN.jsonl]")
    parser.add_argument("--straight", action="store_true", help="also right episodes without a detour, one a tree")
    given = parse_arguments(parser, argv)
    file = trees_file(given.trees)
    episodes = list(weave_all(file, run_of(file), straight=given.straight))
    if not episodes:
        raise ConfigError(f"{file} has no right episode beside a search that failed; search more questions")
    out = Path(given.out or f"{RUNS}/woven-{stem_of(given.trees)}.jsonl")
    write_records(out, episodes)
    detours = sum(any(not step.learn for step in episode.steps) for episode in episodes)
    say(f"weave: {counted(len(episodes), 'episode')}, {detours} with a detour, in {out}")
    longest = max(len(episode.steps) for episode in episodes)
    say_next("trees", "worked", out, "--prompt.profile", "stack", "--episode.depth", longest + 1)
    return 0


def weave_all(file: Path, made_by: dict[str, Any], *, straight: bool) -> Iterator[WorkedEpisode]:
    """The episodes of a file of trees, of each tree at most one with a detour and one without. `made_by`: the manifest
    of the run, for trees that do not name their grammar; empty where the file lies in none.

    A detour is a failed sibling that is woven in, or one that the right episode went and took back itself.
    """
    for tree in read_records(file, Tree):
        grammar = grammar_of_tree(tree, made_by)
        if "push" not in grammar.effects.values():
            raise ConfigError(
                f"{file}: its agent ({grammar.name}) searches twice in a row, which the stack agent may not; weave "
                "trees of the profile transcript, stack or flat"
            )
        path = _right_path(tree)
        if path is None:
            continue
        steps = _masked([_step(node, grammar) for node in path])
        if not any(step.learn and grammars.STACK.effects[step.action] == "call" for step in steps):
            continue  # every search was taken back: the answer was luck
        on_its_way = not all(step.learn for step in steps)
        if straight and not on_its_way:
            yield _episode(tree, "straight", steps)
        if woven := _woven(tree, path, grammar) or (steps if on_its_way else None):
            yield _episode(tree, "detour", woven)


def _right_path(tree: Tree) -> list[Node] | None:
    """The nodes behind the root to the nearest right answer that searched; None without one."""
    right = [node for node in tree.nodes if node.prediction_f1 == 1.0 and node.depth > 1]
    return path_to(tree, min(right, key=lambda node: (node.depth, node.id)))[1:] if right else None


def _woven(tree: Tree, path: list[Node], grammar: Grammar) -> list[WorkedStep] | None:
    """The path with a failed sibling of one of its searches before that; None where no search beside it failed."""
    siblings = children_of(tree)
    for place, node in enumerate(path):
        if not _retrieves(node, grammar):
            continue
        beside = [one for one in siblings[node.parent or 0] if _words(one) != _words(node)]
        failed = next((one for one in beside if _failed(tree, one, grammar)), None)
        if failed is not None:
            note = NOTES[zlib.crc32(f"{tree.question.id}/{failed.id}".encode()) % len(NOTES)]
            back = WorkedStep("backtrack", f"<backtrack> {note} </backtrack>")
            woven = [_step(each, grammar) for each in (*path[:place], failed, *path[place:])]
            return _masked([*woven[: place + 1], back, *woven[place + 1 :]])
    return None


def _words(node: Node) -> str:
    """What a node says, without its thought. To ask the same once more is no better search."""
    return " ".join((node.content or "").split())


def _failed(tree: Tree, node: Node, grammar: Grammar) -> bool:
    """Whether a search found no marked passage that the episode had not, and no right answer stands below it.

    Where no passage is marked nobody knows: it has not failed.
    """
    gold = gold_of(tree.question)
    if gold is None or not _retrieves(node, grammar) or node.failure is not None:
        return False
    *before, _ = path_to(tree, node)
    known = {gold.matches(found) for one in before for found in one.passages}
    if {gold.matches(found) for found in node.passages} - known - {None}:
        return False
    return not any(one.prediction_f1 == 1.0 and node in path_to(tree, one) for one in tree.nodes)


def _retrieves(node: Node, grammar: Grammar) -> bool:
    return node.action is not None and grammar.effects.get(node.action) == "call"


def _masked(steps: list[WorkedStep]) -> list[WorkedStep]:
    """The steps; those that a later one takes back are shown and not learnt."""
    back = popped(tuple(Step(step.action, step.text, "") for step in steps), grammars.STACK)
    return [replace(step, learn=place not in back) for place, step in enumerate(steps)]


def _step(node: Node, grammar: Grammar) -> WorkedStep:
    """A node's step in the stack's words, by what it does. Evidence that keeps nothing is a step back."""
    content, effect = node.content or "", grammar.effects[node.action or ""]
    if grammars.STACK.effects.get(node.action or "") == effect:
        name = node.action or ""
    elif effect == "push" and content.strip(" .").lower() in NOTHING:
        return WorkedStep("backtrack", f"<backtrack> {NOTES[0]} </backtrack>")
    else:
        name = {"call": "search", "push": "reasoning", "end": "answer"}[effect]
    return WorkedStep(name, f"<{name}> {_words(node)} </{name}>")


def _episode(tree: Tree, kind: str, steps: list[WorkedStep]) -> WorkedEpisode:
    asked = tree.question
    return WorkedEpisode(f"{asked.id}-{kind}", asked.question, asked.golden_answers, tuple(steps), asked.metadata)
