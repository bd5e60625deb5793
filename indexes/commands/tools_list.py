"""`steprag tools list`: the lines of a prompt that describe the tools of a file."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import aclosing
from dataclasses import asdict

from indexes import open_retriever
from steprag.agent.inert import neutralise
from steprag.agent.retriever import Retriever, Tooled
from steprag.config.load import parse_arguments
from steprag.config.recipes import index_of
from steprag.errors import ConfigError
from steprag.records.jsonl import dump_line


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag tools list", description="Shows how the prompt describes the tools.")
    parser.add_argument("--index", metavar="FILE", help="tools file (YAML), as other commands take it")
    parser.add_argument("--config", metavar="RECIPE", help="recipe of generate or infer that names it by the key index")
    parser.add_argument("--json", action="store_true", help="a JSON object a tool, with its arguments")
    given = parse_arguments(parser, argv)
    index = index_of(given, newest=False)
    retriever = open_retriever(index)
    asyncio.run(_closed(retriever))
    if not isinstance(retriever, Tooled):
        raise ConfigError(f"{index} is an index and no tools file: a query goes to it as it is")
    for tool in retriever.tools:
        sys.stdout.write((dump_line(asdict(tool)) if given.json else neutralise(tool.shown)) + "\n")
    return 0


async def _closed(retriever: Retriever) -> None:
    async with aclosing(retriever):
        await retriever.ready()
