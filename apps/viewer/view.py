"""`steprag view RUN…`: run folders in a browser, or as one file to mail."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from steprag.config.load import parse_arguments
from steprag.console.progress import say, say_next
from steprag.console.terminal import guarded
from steprag.errors import ConfigError, counted
from steprag.net.hosts import listen

if TYPE_CHECKING:
    from apps.viewer.answers import Answers

RUNS = "runs"
"""Where runs are looked for if none is named."""
BODY_BYTES = 2**16
"""Longest request body: a mark."""
GRACE = 5
"""Seconds that requests under way have to end."""


def main(argv: list[str]) -> int:
    """Runs `steprag view`; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="steprag view", description="Trees, pairs, predictions and training curves of run folders, in a browser."
    )
    parser.add_argument("runs", nargs="*", metavar="RUN", help="run folders, folders of run folders, or a trees.jsonl "
                        f"[{RUNS}]")  # fmt: skip
    parser.add_argument("--out", metavar="FILE.html", help="write one file that opens without a server, and end")
    parser.add_argument("--limit", "--trees", dest="trees", type=int, default=100, metavar="N",
                        help="of each run, trees in that file [100]")  # fmt: skip
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; beyond this machine only with a "
                        "token [127.0.0.1]")  # fmt: skip
    parser.add_argument("--port", type=int, default=8200, help="0 takes a free one [8200]")
    parser.add_argument("--token_env", default="STEPRAG_TOKEN", metavar="NAME", help="environment variable that holds "
                        "the token; empty: on this machine one is made up at each start [STEPRAG_TOKEN]")  # fmt: skip
    parser.add_argument("--allow_host", action="append", default=[], metavar="NAME", help="a further name to answer "
                        "to, as a proxy's; may be repeated")  # fmt: skip
    given = parse_arguments(parser, argv)
    if not 0 <= given.port <= 65535:
        raise ConfigError(f"--port {given.port}: give 0 to 65535")
    if given.trees < 1:
        raise ConfigError(f"--trees {given.trees}: give at least 1")
    if not given.runs and not Path(RUNS).is_dir():
        raise ConfigError(f"there is no folder {RUNS} here yet: steprag demo makes one; or give a run folder")
    from apps.viewer.answers import Answers  # figures and rewards, which no help needs
    from apps.viewer.folders import open_folders

    paths = given.runs or [RUNS]
    answers = Answers(open_folders(paths), paths)
    if given.out:
        from apps.viewer.export import write_export

        size = write_export(answers, Path(given.out), given.trees)
        runs = counted(len(answers.folders), "run")
        say(f"view: {given.out} holds {runs} ({size / 2**20:.1f} MiB); open it in a browser")
        say_next("view", *paths)
        return 0
    from steprag.web.listening import until_stopped

    return until_stopped(serve_view(answers, given.host, given.port, given.token_env, given.allow_host))


async def serve_view(answers: Answers, host: str, port: int, token_env: str, names: Sequence[str]) -> None:
    """Serves until a signal comes. Raises ConfigError where address or token are not in order."""
    from apps.viewer.api import create_view_app
    from steprag.web.app import access_of, show_link, token_of
    from steprag.web.listening import serve_app

    token = token_of(host, token_env, names)
    with listen(host, port) as listening:
        access = access_of(listening, host, token, BODY_BYTES, names=names)
        show_link(listening, access)
        say(f"open the link to view {counted(len(answers.folders), 'run')}; Ctrl-C stops it")
        await serve_app(create_view_app(answers, access), listening, grace=GRACE)


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
