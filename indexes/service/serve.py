"""`steprag index serve`: one process holds the index, others ask it over HTTP."""

from __future__ import annotations

import argparse
import faulthandler
import math
import sys
from pathlib import Path

from indexes.config import ServeConfig
from steprag.config.load import add_options, config_from, parse_arguments
from steprag.console.progress import say
from steprag.engines.threads import spin_briefly, usable_cores
from steprag.errors import counted
from steprag.net.hosts import is_loopback, listen, url_of


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag index serve", description="Serves an index folder over HTTP.")
    parser.add_argument("--index", required=True, metavar="DIR", help="the index folder")
    add_options(parser, ServeConfig)
    arguments = parse_arguments(parser, argv)
    config = config_from(ServeConfig, arguments)
    spin_briefly()  # before FAISS is loaded: else its threads spin while they wait, at twice the processor's time
    from steprag.web.listening import until_stopped  # a web server, which no help needs

    faulthandler.enable(2)  # a mapped file that is cut short under us is a bus error, which Python cannot catch
    return until_stopped(serve(Path(arguments.index), config), config.limits.seconds)


async def serve(folder: Path, config: ServeConfig) -> None:
    """Serves until a signal comes. Raises ConfigError where folder, address or token are not in order."""
    from indexes.folder.manifest import read_index_manifest
    from indexes.open import Machine, mode_of, open_folder
    from indexes.service.api import Served, create_app
    from steprag.web.listening import serve_app, token_in

    token = token_in(config.retriever.token_env, config.host)
    listening = listen(config.host, config.port)
    with listening:
        machine = Machine(config.threads or usable_cores(), config.device, config.batch, config.backend)
        retriever = open_folder(folder, config.retriever, machine)
        loopback = is_loopback(config.host)
        mode = mode_of(folder, read_index_manifest(folder), config.retriever)
        app = create_app(Served(retriever, mode, config.limits, config.top_k, token, loopback))
        sys.stdout.write(f"{url_of(listening)}\n")
        sys.stdout.flush()
        say(f"serving {folder} ({counted(retriever.passages, 'passage')}, {mode}); Ctrl-C stops it")
        try:
            await serve_app(app, listening, grace=math.ceil(config.limits.seconds))
        finally:
            await retriever.aclose()
