"""`steprag index serve`: one process holds the index, others ask it over HTTP."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import signal
import socket
import sys
from pathlib import Path

from indexes.manifest import read_index_manifest
from indexes.retrieval.open import Machine, mode_of, open_folder
from indexes.service.api import Served, create_app
from indexes.service.config import ServeConfig
from steprag.cli import guarded
from steprag.config import add_options, config_from, parse_arguments
from steprag.engines.server import is_loopback
from steprag.engines.threads import usable_cores
from steprag.errors import ConfigError
from steprag.progress import say

KEEP_ALIVE = 65
"""Seconds that an idle connection stays open: longer than clients leave theirs, so none is closed under a request."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag index serve", description="Serves an index folder over HTTP.")
    parser.add_argument("--index", required=True, metavar="DIR", help="the index folder")
    add_options(parser, ServeConfig)
    arguments = parse_arguments(parser, argv)
    config = config_from(ServeConfig, arguments)
    # `kill` ends us as Ctrl-C does; uvicorn answers what it accepted and raises the signal again behind it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        asyncio.run(serve(Path(arguments.index), config))
    except KeyboardInterrupt:
        return 0
    return 0


async def serve(folder: Path, config: ServeConfig) -> None:
    """Serves until a signal comes. Raises ConfigError where folder, address or token are not in order."""
    import uvicorn

    token = service_token(config.host, config.retriever.token_env)
    listening = _listen(config.host, config.port)
    with listening:
        machine = Machine(config.threads or usable_cores(), config.device, config.batch)
        retriever = open_folder(folder, config.retriever, machine)
        loopback = is_loopback(config.host)
        mode = mode_of(folder, read_index_manifest(folder), config.retriever)
        app = create_app(Served(retriever, mode, config.limits, config.top_k, token, loopback))
        address, port = listening.getsockname()[:2]
        url = f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
        say(f"serving {folder} ({retriever.passages} passages, {mode}); Ctrl-C stops it")
        try:
            settings = uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=math.ceil(config.limits.seconds),
            )
            await uvicorn.Server(settings).serve(sockets=[listening])
        finally:
            await retriever.aclose()


def service_token(host: str, token_env: str) -> str | None:
    """The token that clients must send: what the variable holds. Raises ConfigError where it is needed and missing."""
    token = os.environ.get(token_env) or None
    if token is None and not is_loopback(host):
        raise ConfigError(f"serving on {host} needs a token: put one in the environment variable {token_env}")
    return token


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket, so that a taken port is told before the index is opened."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    return listening


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
