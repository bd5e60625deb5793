"""`steprag serve --mcp`: what its command line says; `apps.mcp.service` is imported once that is known."""

from __future__ import annotations

import argparse
from pathlib import Path

from apps.chat.serve import asked_for, serve_chat
from steprag.runs.run import NUMBERED


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="steprag serve --mcp", description="The agent as MCP tools: ask, search, fetch."
    )
    told = "stdio: a client starts this command; http: /mcp beside the page of steprag serve, with its token [stdio]"
    parser.add_argument("way", nargs="?", choices=("stdio", "http"), default="stdio", help=told)
    given, index, config = asked_for(parser, argv)
    out = Path(given.out)

    from apps.mcp.service import doors, serve_stdio  # a web server, which no help needs
    from steprag.web.listening import until_stopped

    if given.way == "http":
        return until_stopped(serve_chat(config, index, out, doors))
    if given.out.endswith(NUMBERED):  # clients start one for each of their windows, in folders of their own
        config = config.model_copy(update={"serve": config.serve.model_copy(update={"keep": False})})
    return until_stopped(serve_stdio(config, index, out), None)  # its client ends it
