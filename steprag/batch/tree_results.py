"""The results file of a search, `trees.jsonl`: the counts of a tree, which the file's index keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from steprag.agent.compliance import Said, written
from steprag.batch.results import ResultKind
from steprag.records.jsonl import dump_line, existing
from steprag.tree import Tree
from steprag.types import Usage


class _TreeCounts(TypedDict):
    __pydantic_config__ = ConfigDict(strict=True, extra="forbid", defer_build=True)  # pyright: ignore

    nodes: int
    known: int
    refused_steps: int
    solved: int
    mixed: int
    ended: str
    usage: Usage
    question: str
    kind: str | None
    depth: int
    best: float | None
    written: dict[str, dict[str, int]]
    reasoning: int


_COUNTS = TypeAdapter(_TreeCounts)


def tree_counts(tree: Tree) -> dict[str, Any]:
    """What is counted of a tree, and what a list of trees shows of it.

    `solved`: an answer has F1 1; `mixed`: one answer is better than another; `best`: the best answer's F1, None where
    there is none; `kind`: the question's `metadata.type`, None where it has none; `written`: its completions by action,
    those equal to a sibling left out (`steprag.agent.compliance`); `reasoning`: characters that were split off them.
    """
    scores = [node.prediction_f1 for node in tree.nodes if node.prediction_f1 is not None]
    kind = tree.question.metadata.get("type")
    return {
        "nodes": len(tree.nodes),
        "known": len(tree.known or ()),
        "refused_steps": sum(node.failure is not None for node in tree.nodes),
        "solved": int(any(score == 1.0 for score in scores)),
        "mixed": int(bool(scores) and max(scores) > min(scores)),
        "ended": tree.status,
        "usage": tree.usage.shown,
        "question": tree.question.question,
        "kind": kind if isinstance(kind, str) else None,
        "depth": max(node.depth for node in tree.nodes),
        "best": max(scores, default=None),
        "written": written(said_by(tree)),
        "reasoning": sum(node.reasoning or 0 for node in tree.nodes),
    }


def said_by(tree: Tree) -> list[Said]:
    """The completions of a tree, those equal to a sibling left out."""
    return [(node.action, node.text, node.failure) for node in tree.nodes[1:]]


def counts_fit(counts: dict[str, Any]) -> bool:
    """Whether these can be the counts of a tree."""
    try:
        _COUNTS.validate_json(dump_line(counts))
    except ValidationError:
        return False
    return True


def trees_file(given: str) -> Path:
    """The trees of a run folder, or the file itself. Raises ConfigError."""
    found = existing(given, "trees")
    return existing(found / "trees.jsonl", "trees of the run") if found.is_dir() else found


TREES = ResultKind(Tree, lambda tree: tree.question.id, tree_counts, counts_fit, said_by)
