"""`steprag index search`: passages for queries, to read or as JSON Lines."""

from __future__ import annotations

import argparse
import asyncio
import sys
import textwrap
from collections.abc import Sequence
from contextlib import aclosing
from typing import ClassVar

from pydantic import Field

from indexes import open_retriever
from steprag.agent.retriever import PLACES, Retriever
from steprag.config.load import StageConfig, add_options, config_from, parse_arguments
from steprag.config.recipes import NEWEST, index_of
from steprag.config.sections import RetrieverConfig
from steprag.console.progress import say, say_next
from steprag.errors import ConfigError
from steprag.records.jsonl import dump_line, to_dict
from steprag.types import Passage


class SearchStageConfig(StageConfig):
    names_index: ClassVar[bool] = True

    retriever: RetrieverConfig = Field(default_factory=RetrieverConfig)


async def search_all(retriever: Retriever, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
    """The passages of every query, in order, all asked at once. Closes the retriever."""
    async with aclosing(retriever):
        return await asyncio.gather(*(retriever.search(query, top_k) for query in queries))


def readable(query: str, passages: Sequence[Passage]) -> str:
    """A query and its passages as text."""
    blocks = [f"# {query}"]
    for rank, passage in enumerate(passages, 1):
        score = "" if passage.score is None else f"{passage.score:.4f}  "  # tools give none
        head = f"{rank}. {score}{passage.title}  [{passage.id}]"
        blocks.append(head + "\n" + textwrap.fill(passage.text, 110, initial_indent="   ", subsequent_indent="   "))
    return "\n".join(blocks) + "\n\n"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag index search", description="Finds passages in an index folder.")
    parser.add_argument("--index", metavar="INDEX", help=f"{PLACES} [{NEWEST}]")
    parser.add_argument("query", nargs="+", help="one or more queries")
    parser.add_argument("--top_k", type=int, default=3, help="passages a query brings [3]")
    parser.add_argument("--json", action="store_true", help="one JSON object a query")
    add_options(parser, SearchStageConfig)
    arguments = parse_arguments(parser, argv)
    config = config_from(SearchStageConfig, arguments).retriever
    if arguments.top_k < 1:
        raise ConfigError(f"--top_k is {arguments.top_k}; at least 1 passage must be asked for")
    if not all(query.strip() for query in arguments.query):
        raise ConfigError("give queries with text in them")
    if len(arguments.query) > 2 and not any(" " in query for query in arguments.query):
        say(f"each word is a query of its own; for one query: steprag index search {' '.join(arguments.query)!r}")
    index = index_of(arguments)
    retriever = open_retriever(index, config)
    found = asyncio.run(search_all(retriever, arguments.query, arguments.top_k))
    for query, passages in zip(arguments.query, found, strict=True):
        if arguments.json:
            sys.stdout.write(dump_line({"query": query, "passages": [to_dict(p) for p in passages]}) + "\n")
        else:
            sys.stdout.write(readable(query, passages))
    say_next("ask", arguments.query[0], "--index", index)
    return 0
