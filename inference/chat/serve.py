"""`steprag serve`: the agent as a service that people and programs talk to: a web page, and the OpenAI API."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

from indexes import open_retriever
from inference.chat.config import ChatConfig
from inference.chat.http.routes import FREE, create_chat_app
from inference.chat.http.service import ChatService
from inference.chat.memory import ChoiceFormat, QuestionFormat, Rewriter
from inference.chat.turns.desk import Desk
from inference.chat.turns.player import ChatAgent
from inference.chat.turns.store import TurnStore
from inference.config import DEMO_INDEX, config_of
from steprag.agent.checkpoints import checked_profile
from steprag.agent.environment import Environment
from steprag.agent.open import SERVED, Agent, make_environment, open_agent
from steprag.agent.retriever import PLACES, Sourced
from steprag.batch.database import IN_MEMORY
from steprag.batch.journal import JOURNAL, Journal
from steprag.batch.worklist import player_identity
from steprag.config.load import NEWEST, add_options, index_of, parse_arguments
from steprag.console.progress import say
from steprag.console.terminal import guarded
from steprag.errors import ConfigError, quoted
from steprag.net.hosts import listen, url_of
from steprag.policy.client import Model, OpenAIPolicy, open_model
from steprag.runs.run import NUMBERED, code_version, open_run
from steprag.web.app import access_of, show_link, token_of
from steprag.web.listening import serve_app, until_stopped

EXAMPLES = (
    "Which currency is used in the country whose capital is Tirana?",
    "Which country has more inhabitants, Kenya or Ethiopia?",
    "In which language are the laws of the country where George de Hevesy worked written?",
)
"""Questions that the demo's index can answer: two steps, a comparison, three steps."""
SMALL = {"rewriter": {"on": True, "way": "choose"}}
"""How the shipped agent reads questions that lean on others, where nothing else is said."""
MODES = ("auto", "local", "web", "both")
"""Where the agent may search; the first that there is, is the default."""
GRACE = 10.0
"""Seconds that turns under way have to end once the service is told to stop; others are played at its next start."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag serve", description="Talk to the agent: a web page, and an API.")
    parser.add_argument("--index", metavar="INDEX", help=f"{PLACES} [{NEWEST}]")
    parser.add_argument("--out", default=f"runs/chat{NUMBERED}", metavar="RUN",
                        help="run folder: turns.jsonl [runs/chat]")  # fmt: skip
    add_options(parser, ChatConfig)
    given = parse_arguments(parser, argv)
    config = config_of(ChatConfig, given, beside=SMALL)
    return until_stopped(serve_chat(config, index_of(given), Path(given.out)))


async def serve_chat(config: ChatConfig, index: str, out: Path) -> None:
    """Serves until a signal comes. Raises ConfigError where index, model, address, token or folder are not in order."""
    token = token_of(config.serve.host, config.serve.token_env)
    with listen(config.serve.host, config.serve.port) as listening:
        async with aclosing(open_retriever(index, config.retriever)) as retriever:
            profile = checked_profile(config.prompt, config.policy)
            environment = make_environment(profile, retriever, config.episode)
            with _folder(config, environment, out) as folder:
                async with _chat_agent(config, environment, folder) as chat:
                    desk = Desk(chat, config.serve, config.policy.concurrency)
                    mode = config.serve.mode or next(iter(chat.modes))
                    if mode not in chat.modes:
                        raise ConfigError(f"serve.mode is {quoted(mode)}; here there are {', '.join(chat.modes)}")
                    access = access_of(listening, config.serve.host, token, config.serve.body_bytes, FREE)
                    examples = config.serve.examples or (EXAMPLES if index == DEMO_INDEX else ())
                    service = ChatService(
                        desk, access, config.serve, _model_name(config), index, mode, code_version(), examples
                    )
                    show_link(listening, access)
                    say(f"open the link, or point a client at {url_of(listening)}/v1 with the token as its key; "
                        "Ctrl-C stops it")  # fmt: skip
                    try:
                        await serve_app(create_chat_app(service), listening, grace=math.ceil(GRACE))
                    finally:
                        await desk.close()
                        chat.store.close()


@contextmanager
def _folder(config: ChatConfig, environment: Environment, out: Path) -> Iterator[Path | None]:
    """The run folder, locked; None where nothing is kept."""
    if not config.serve.keep:
        yield None
        return
    identity = {**player_identity(config, environment), "seed": config.seed, "engine": config.policy.engine}
    with open_run(out, "serve", identity=identity, config=config.model_dump()) as run:
        yield run.path


@asynccontextmanager
async def _chat_agent(config: ChatConfig, environment: Environment, folder: Path | None) -> AsyncIterator[ChatAgent]:
    """The agent in every mode, with its journal and the turns that were kept."""
    journal_file = folder / JOURNAL if folder else IN_MEMORY
    async with (
        open_agent(config, environment.retriever, environment=environment) as agent,
        _rewriter(config, agent) as rewriter,
        Journal(journal_file) as journal,
    ):
        modes, store = modes_of(environment), TurnStore(folder)
        for mode in modes.values():
            await mode.retriever.ready()
        yield ChatAgent(modes, agent.policy, rewriter, journal, store, config.serve.history, config.seed)


def modes_of(environment: Environment) -> dict[str, Environment]:
    """The agent's environments by mode, the default first. `direct` answers at once, without the search that some
    profiles begin with; the others differ in where they search: a web file with an index brings auto, local, web and
    both.
    """
    retriever = environment.retriever
    if isinstance(retriever, Sourced):
        names = sorted(retriever.sources, key=MODES.index)
        searching = {name: replace(environment, retriever=retriever.sources[name]) for name in names}
    else:
        searching = {"web" if retriever.fingerprint.startswith("web:") else "local": environment}
    words = environment.profile.words.model_copy(update={"search_first": False})
    return {**searching, "direct": replace(environment, depth=1, profile=replace(environment.profile, words=words))}


@asynccontextmanager
async def _rewriter(config: ChatConfig, agent: Agent) -> AsyncIterator[Rewriter | None]:
    """The model that makes questions stand alone; the agent's own engine where both are served alike. Raises
    ConfigError where it is to choose and its engine cannot be held to a choice.
    """
    choose = config.rewriter.way == "choose"
    format = ChoiceFormat() if choose else QuestionFormat()
    if not config.rewriter.on:
        yield None
    elif choose and config.rewriter.engine in ("openai", "transformers"):
        raise ConfigError(f"rewriter.way choose needs constrained output, which {config.rewriter.engine} has not")
    elif isinstance(agent.policy.policy, OpenAIPolicy) and _served_alike(config):
        async with agent.policy.policy.beside(config.rewriter, format) as policy:
            yield Rewriter(Model(policy, agent.policy.gate), choose)
    else:
        async with open_model(config.rewriter, format) as model:
            yield Rewriter(model, choose)


def _served_alike(config: ChatConfig) -> bool:
    return all(getattr(config.policy, key) == getattr(config.rewriter, key) for key in SERVED)


def _model_name(config: ChatConfig) -> str:
    """The model in words, for the page: file names without their folders."""
    names = [config.policy.model, config.policy.adapter]
    return " + ".join(Path(name).name for name in names if name)


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
