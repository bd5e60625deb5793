"""`steprag environment`: the agent's world for other people's trainers, as an OpenEnv server (the extra `openenv`)."""

from __future__ import annotations

import argparse

from steprag.agent.retriever import PLACES
from steprag.config.load import parse_arguments
from steprag.console.progress import say
from steprag.errors import ConfigError, counted
from steprag.net.hosts import listen, url_of


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag environment", description="The agent's world for other trainers.")
    parser.add_argument("--questions", required=True, metavar="FILE", help="questions with golden answers")
    parser.add_argument("--index", required=True, metavar="INDEX", help=PLACES)
    parser.add_argument("--config", metavar="FILE", help="recipe of steprag train: prompt, episode, grpo.rewards")
    parser.add_argument("--port", type=int, default=8500, help="of this machine; 0 takes a free one [8500]")
    parser.add_argument("--sessions", type=int, default=256, help="episodes at once [256]")
    given = parse_arguments(parser, argv)
    if not 0 <= given.port <= 65535 or given.sessions < 1:
        raise ConfigError("--port takes 0 to 65535, --sessions 1 or more")
    from steprag.web.listening import until_stopped  # a web server, which no help needs

    return until_stopped(serve_environment(given))


async def serve_environment(given: argparse.Namespace) -> None:
    """Serves until a signal comes. Raises ConfigError where questions, index or port are not in order."""
    from steprag.web.listening import serve_app
    from training.interop.openenv_world import openenv_app
    from training.interop.stepwise import open_step_world

    with listen("127.0.0.1", given.port) as listening:
        world = open_step_world(given.questions, given.index, given.config)
        try:
            await world.environment.retriever.ready()
            say(f"environment: {counted(len(world.questions), 'question')} at {url_of(listening)}; Ctrl-C stops it")
            await serve_app(openenv_app(world, given.sessions), listening, grace=5)
        finally:
            await world.environment.retriever.aclose()
