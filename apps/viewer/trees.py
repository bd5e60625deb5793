"""What the page shows of one tree and of one of its nodes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

from cachetools import LRUCache, cached

from apps.viewer.folders import RunFolder
from apps.viewer.listing import Listing
from steprag.agent.grammar import Grammar
from steprag.batch.database import Database
from steprag.batch.journal import JOURNAL
from steprag.batch.results import Place
from steprag.errors import DataError, JournalError
from steprag.records.jsonl import line_hash
from steprag.tree import Node, Tree

KEPT = 4
"""Trees that are kept in memory, the last ones looked at."""


def tree_reader() -> Callable[[Listing[Tree], Place], tuple[Tree, str]]:
    """What reads a tree and the text of its line; the last few stay in memory, so that nodes open at once."""

    def key(listing: Listing[Tree], place: Place) -> tuple[Any, ...]:
        return listing.path, listing.generation, place.start, place.length

    @cached(LRUCache(KEPT), key, threading.Lock())
    def tree(listing: Listing[Tree], place: Place) -> tuple[Tree, str]:
        return listing.read(place), listing.line_at(place)

    return tree


def roles(grammar: Grammar) -> dict[str, str]:
    """What the actions of a grammar do, as the page draws them: "ends", "keeps" or "asks"; others are left out."""
    told = {action.name: "asks" for action in grammar.actions if action.retrieves}
    told |= {action.name: "keeps" for action in grammar.actions if action.keeps}
    return told | {action.name: "ends" for action in grammar.actions if action.terminal}


def skeleton(tree: Tree, line: str) -> dict[str, Any]:
    """A tree without prompts and passages: columns in order of the node ids.

    `asked`: whether it is the first of the nodes that one request brought.
    """
    nodes = tree.nodes
    return {
        "hash": line_hash(line),
        "question": {"id": tree.question.id, "question": tree.question.question,
                     "golden_answers": tree.question.golden_answers, "metadata": tree.question.metadata},
        "status": tree.status,
        "usage": tree.usage.shown,
        "iterations": tree.iterations,
        "known": tree.known,
        "nodes": {
            **{name: [getattr(node, name) for node in nodes] for name in COLUMNS},
            "found": [[passage.title for passage in node.passages] for node in nodes],
            "asked": [node.usage.calls > 0 for node in nodes],
            "belief": [None if node.belief is None else node.belief.logp for node in nodes],
        },
    }  # fmt: skip


COLUMNS = ("parent", "depth", "action", "text", "content", "visits", "value", "terminal", "failure", "prediction_f1")
"""Fields of a node that a skeleton has."""


def node_told(tree: Tree, node: Node, run: RunFolder) -> dict[str, Any]:
    """All of a node: the prompt that it was sampled from, its completion, what it found, and what it cost."""
    parent = None if node.parent is None else tree.nodes[node.parent]
    texts, missing = passage_texts(run, [passage.id for passage in node.passages])
    return {
        "id": node.id,
        "prompt": parent.messages if parent else None,
        "next_prompt": node.messages,
        "text": node.text,
        "content": node.content,
        "passages": [{**vars(passage), "text": texts.get(passage.id)} for passage in node.passages],
        "texts_missing": missing,
        "judge": node.judge,
        "belief": None if node.belief is None else {**vars(node.belief), "usage": node.belief.usage.shown},
        "usage": node.usage.shown,
    }


def passage_texts(run: RunFolder, ids: list[str]) -> tuple[dict[str, str], str | None]:
    """Texts of passages by id, from the run's journal, and why some are missing where some are."""
    path = run.file(JOURNAL)
    if not ids:
        return {}, None
    if path is None:
        return {}, f"the run keeps no passage texts: it has no {JOURNAL}"
    marks = ",".join("?" * len(ids))
    try:
        with closing(Database(path, reading=True)) as database:
            rows = database.rows(f"SELECT id, text FROM passages WHERE id IN ({marks})", *ids)
    except JournalError as error:
        return {}, str(error)
    texts = {key: text for key, text in rows if isinstance(text, str)}
    return texts, None if len(texts) >= len(set(ids)) else f"{JOURNAL} lacks some of these passages"


def node_of(tree: Tree, node_id: int, listing: Listing[Tree], place: Place) -> Node:
    """A node by id. Raises DataError."""
    if not 0 <= node_id < len(tree.nodes):
        raise DataError(listing.path, f"the tree has no node {node_id}", line=place.line)
    return tree.nodes[node_id]
