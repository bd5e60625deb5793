"""`steprag serve`: the agent as a service that people and programs talk to: a web page, and the OpenAI API."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps.chat.config import ChatConfig
from apps.chat.memory import LineFormat, Rewriter
from apps.chat.routing import AUTO, DIRECT, REASONING, SEARCH, SEARCHING, mode_named
from apps.chat.turns.store import TurnStore
from indexes import open_retriever
from inference.config import BETTER, DEMO_INDEX, config_of, support_for
from steprag.agent.checkpoints import checked_profile, profile_for
from steprag.agent.citations import Support
from steprag.agent.environment import Environment
from steprag.agent.open import SERVED, OpenAgent, make_environment, open_agent
from steprag.agent.profiles import PromptProfile, load_profile
from steprag.agent.reader import Reader
from steprag.agent.retriever import PLACES, Sourced
from steprag.batch.database import IN_MEMORY
from steprag.batch.journal import JOURNAL, Journal
from steprag.batch.worklist import player_identity
from steprag.config.load import add_options, parse_arguments
from steprag.config.recipes import NEWEST, index_of
from steprag.config.sections import EMBEDDED, EXTRACTIVE, PolicyConfig, PromptConfig
from steprag.console.progress import say
from steprag.console.terminal import guarded
from steprag.engines.headers import gguf_values
from steprag.engines.models import ModelFiles, resolve_model, shipped_adapters, with_adapter
from steprag.errors import ConfigError, quoted
from steprag.net.hosts import listen, url_of
from steprag.policy.open import Model, open_model
from steprag.policy.requests import STEPS_FORCED
from steprag.records.jsonl import read_json
from steprag.runs.run import NUMBERED, code_version, open_run

if TYPE_CHECKING:
    from apps.chat.http.service import ChatService
    from apps.chat.turns.player import ChatAgent
    from steprag.web.guard import Access

EXAMPLES = (
    "In which year was promethium discovered?",
    "How many provinces does the leading producer of platinum have?",
    "By which name is the country that has Vilnius as its capital known at home?",
)
"""Questions that the shipped agent answers rightly from the demo's index, in one search and in two."""
SMALL = {"rewriter": {"way": "choose"}}
"""How the shipped agent reads questions that lean on others, where nothing else is said."""
OWN_PROFILES = {DIRECT: "talk", REASONING: "cot"}
"""The prompts of the modes that do not search, unless others are given."""
TRIES_AT = 0.8
"""The temperature of another try of a question whose first one was greedy; as in a search."""
Door = Callable[[Any, "ChatService"], AbstractAsyncContextManager[Any]]
"""Adds routes to the service's application, and holds what they need while it is served."""
GRACE = 10.0
"""Seconds that turns under way have to end once the service must stop; others are played at its next start."""


def main(argv: list[str]) -> int:
    given, index, config = asked_for(
        argparse.ArgumentParser(prog="steprag serve", description="Talk to the agent: a web page, and an API."), argv
    )
    from steprag.web.listening import until_stopped  # a web server, which no help needs

    return until_stopped(serve_chat(config, index, Path(given.out)))


def asked_for(parser: argparse.ArgumentParser, argv: list[str]) -> tuple[argparse.Namespace, str, ChatConfig]:
    """What a command line that opens the chat agent says, its index, and its configuration."""
    parser.add_argument("--index", metavar="INDEX", help=f"{PLACES} [{NEWEST}]")
    parser.add_argument("--out", default=f"runs/chat{NUMBERED}", metavar="RUN",
                        help="run folder: turns.jsonl [runs/chat]")  # fmt: skip
    add_options(parser, ChatConfig)
    given = parse_arguments(parser, argv)
    index = index_of(given)
    return given, index, config_of(ChatConfig, given, index=index, beside=SMALL)


async def serve_chat(config: ChatConfig, index: str, out: Path, doors: Door | None = None) -> None:
    """Serves until a signal comes; `doors` may add routes. Raises ConfigError where index, model, address, token or
    folder are not in order.
    """
    from apps.chat.http.routes import FREE, create_chat_app
    from steprag.web.app import access_of, show_link, token_of
    from steprag.web.listening import serve_app

    serve = config.serve
    token = token_of(serve.host, serve.token_env, serve.hosts)
    with listen(serve.host, serve.port) as listening:
        access = access_of(listening, serve.host, token, serve.body_bytes, *FREE, names=serve.hosts)
        say("opening the index and starting the model; the link comes when both answer")
        async with chat_service(config, index, out, access) as service:
            app = create_chat_app(service)
            async with doors(app, service) if doors else nullcontext():
                show_link(listening, access)
                say(f"open the link, or point a client at {url_of(listening)}/v1 with the token as its key; "
                    "Ctrl-C stops it")  # fmt: skip
                await serve_app(app, listening, grace=math.ceil(GRACE))


@asynccontextmanager
async def chat_service(config: ChatConfig, index: str, out: Path, access: Access) -> AsyncIterator[ChatService]:
    """The service's parts, ready to take turns. Raises ConfigError as `serve_chat`."""
    from apps.chat.http.service import ChatService
    from apps.chat.turns.desk import Desk

    async with aclosing(open_retriever(index, config.retriever)) as retriever:
        profile = checked_profile(config.prompt, config.policy)
        environment = make_environment(profile, retriever, config.episode)
        support = support_for(index, config.serve.least_score, on=config.serve.support)
        with _folder(config, environment, out) as folder:
            async with _chat_agent(config, environment, folder, support) as chat:
                desk = Desk(chat, config.serve, config.policy.concurrency)
                mode = mode_named(config.serve.mode or AUTO, chat.modes)
                if mode is None:
                    raise ConfigError(f"serve.mode is {quoted(config.serve.mode or AUTO)}; here there are "
                                      f"{', '.join(chat.modes)}")  # fmt: skip
                examples = config.serve.examples or (EXAMPLES if index == DEMO_INDEX else ())
                try:
                    yield ChatService(
                        desk, access, config.serve, _model_name(config), index, mode, code_version(), examples,
                        about(config.policy, index),
                    )  # fmt: skip
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
    identity |= {"modes": adapters} if (adapters := _adapters(config)) else {}
    out.parent.mkdir(parents=True, exist_ok=True)
    before = os.umask(0o077)  # what people said to the service is no other user's to read
    try:
        with open_run(out, "serve", identity=identity, config=config.model_dump()) as run:
            for folder, _, files in os.walk(run.path):  # of earlier versions, or copied here
                for place in (Path(folder), *(Path(folder, name) for name in files)):
                    if not place.is_symlink():
                        place.chmod(0o700 if place.is_dir() else 0o600)
            yield run.path
    finally:
        os.umask(before)


@asynccontextmanager
async def _chat_agent(
    config: ChatConfig, environment: Environment, folder: Path | None, support: Support
) -> AsyncIterator[ChatAgent]:
    """The agent in every mode, with its journal and the turns that were kept."""
    from apps.chat.turns.files import ConversationFiles
    from apps.chat.turns.player import ChatAgent

    profiles = {} if config.policy.engine == EXTRACTIVE else _profiles(config)  # who has no model cannot talk
    journal_file, modes = folder / JOURNAL if folder else IN_MEMORY, modes_of(environment, profiles)
    given = {*_adapters(config).values()} - {config.policy.adapter}
    more = () if config.policy.remote else tuple(sorted(given))
    async with (
        open_agent(config, environment.retriever, environment=environment, more=more) as agent,
        _voices(config, agent, modes) as voices,
        _rewriter(config, agent) as rewriter,
        _sampling(config, agent) as again,
        Journal(journal_file) as journal,
    ):
        store = TurnStore(folder)
        for mode in modes.values():
            await mode.retriever.ready()
        files = ConversationFiles(folder, config.serve) if config.serve.files else None
        yield ChatAgent(
            modes, agent.policy, rewriter, journal, store, config.serve.history, config.seed, support, again, voices,
            config.serve.talk, _room(config), files, _reader(config.policy, agent),
        )  # fmt: skip


def modes_of(environment: Environment, profiles: Mapping[str, PromptProfile] | None = None) -> dict[str, Environment]:
    """The agent's environments by mode, the default first. `auto` and those of SEARCHING search: a web file with an
    index brings web and both, and search, which is auto without talk. `profiles`: those of the modes that do not.
    """
    retriever = environment.retriever
    if isinstance(retriever, Sourced):
        searching = {name: replace(environment, retriever=retriever.sources[name]) for name in (AUTO, *SEARCHING)}
        searching = {AUTO: searching[AUTO], SEARCH: searching[AUTO], **searching}
    else:
        only = "web" if retriever.fingerprint.startswith("web:") else "local"
        searching = {AUTO: environment, only: environment}
    profiles = {name: load_profile(one) for name, one in OWN_PROFILES.items()} if profiles is None else profiles
    return {**searching, **{name: replace(environment, profile=one) for name, one in profiles.items()}}


def _profiles(config: ChatConfig) -> dict[str, PromptProfile]:
    """The prompts of the modes that do not search, checked against their adapters. Raises ConfigError."""
    found, policy = {}, config.policy
    for name, mode in config.modes:
        profile = mode.profile or OWN_PROFILES[name]
        prompt = PromptConfig(profile=profile, unchecked=config.prompt.unchecked or mode.adapter is None)
        if policy.remote:
            found[name] = load_profile(profile)
        else:
            files = resolve_model(policy.model, policy.adapter)
            found[name] = profile_for(prompt, with_adapter(files, mode.adapter) if mode.adapter else files)
        if found[name].words.search_first or any(one.retrieves for one in found[name].grammar.actions):
            raise ConfigError(f"modes.{name}.profile: {profile} searches, which {AUTO} and {SEARCH} do; give another")
    return found


@asynccontextmanager
async def _voices(
    config: ChatConfig, agent: OpenAgent, modes: Mapping[str, Environment]
) -> AsyncIterator[dict[str, Model]]:
    """The models of the modes that do not search: the policy's own, each with its adapter and its sampling."""
    from steprag.policy.client import OpenAIPolicy

    voices = dict[str, Model]()
    async with AsyncExitStack() as stack:
        for name, mode in config.modes:
            policy = agent.policy.policy
            if isinstance(policy, OpenAIPolicy):
                grammar = modes[name].profile.grammar
                own = {"temperature": mode.temperature, "max_tokens": mode.max_tokens}
                own |= {"constrained": config.policy.constrained and not grammar.free}
                beside = policy.beside(config.policy.model_copy(update=own), grammar)
                switched = await (await stack.enter_async_context(beside)).switched(mode.adapter)
                voices[name] = Model(switched, agent.policy.gate)
        yield voices


def _reader(policy: PolicyConfig, agent: OpenAgent) -> Model | None:
    """What answers from people's files in the shipped model's place, which was trained on Atlas and on nothing else."""
    if policy.remote or policy.model != EMBEDDED or policy.adapter not in (None, *shipped_adapters()):
        return None
    environment = agent.environment
    return Model(Reader(environment.profile.grammar, environment.retriever), agent.policy.gate)


def _adapters(config: ChatConfig) -> dict[str, str]:
    """The adapters that modes are given of their own."""
    return {name: mode.adapter for name, mode in config.modes if mode.adapter}


def _room(config: ChatConfig) -> int | None:
    """Characters that earlier turns may have in a prompt, where the context is ours: half of it, of three a token."""
    return None if config.policy.remote else 3 * config.policy.context // 2


@asynccontextmanager
async def _rewriter(config: ChatConfig, agent: OpenAgent) -> AsyncIterator[Rewriter | None]:
    """The model that makes questions stand alone; the agent's own engine where both are served alike. Raises
    ConfigError where it is to choose and its engine cannot be held to a choice.
    """
    from steprag.policy.client import OpenAIPolicy

    choose = config.rewriter.chooses
    format = LineFormat(choose)
    if not config.rewriter.enabled:
        yield None
    elif choose and config.rewriter.engine not in STEPS_FORCED:
        raise ConfigError(f"rewriter.way choose needs constrained output, which {config.rewriter.engine} has not")
    elif isinstance(agent.policy.policy, OpenAIPolicy) and all(
        getattr(config.policy, key) == getattr(config.rewriter, key) for key in SERVED
    ):
        async with agent.policy.policy.beside(config.rewriter, format) as policy:
            yield Rewriter(Model(policy, agent.policy.gate), choose)
    else:
        async with open_model(config.rewriter, format) as model:
            yield Rewriter(model, choose)


@asynccontextmanager
async def _sampling(config: ChatConfig, agent: OpenAgent) -> AsyncIterator[Model | None]:
    """The policy of further tries where the first one is greedy: it would write the same again."""
    from steprag.policy.client import OpenAIPolicy

    greedy, policy = config.policy.temperature == 0, agent.policy.policy
    if not greedy or not isinstance(policy, OpenAIPolicy):
        yield None
        return
    warm = config.policy.model_copy(update={"temperature": TRIES_AT})
    async with policy.beside(warm, agent.environment.profile.grammar) as other:
        yield Model(other, agent.policy.gate)


def _model_name(config: ChatConfig) -> str:
    """The model in words, for the page: file names without their folders."""
    names = [config.policy.model, config.policy.adapter]
    return " + ".join(Path(name).name for name in names if name)


def about(policy: PolicyConfig, index: str) -> str:
    """A line on what answers and what it knows, as far as the files of model and index say; "" where they do not."""
    size = None if policy.remote else size_of(resolve_model(policy.model, policy.adapter))
    small = ": a small model, which errs often" if size and size.endswith("M") else ""
    manifest = Path(index) / "manifest.json"
    corpus = read_json(manifest).get("corpus") if manifest.is_file() else None
    told = [f"{size} parameters{small}."] if size else []
    told += [f"No language model: {BETTER}."] if policy.engine == EXTRACTIVE else []
    if isinstance(corpus, dict) and isinstance(corpus.get("rows"), int) and isinstance(corpus.get("path"), str):
        source = "/".join(Path(corpus["path"]).parts[-2:])
        told.append(f"It answers from {corpus['rows']:,} passages ({source}) and from nothing else.")
    return " ".join(told)


def size_of(files: ModelFiles) -> str | None:
    """A model's size as its GGUF file names it ("135M", "7B"); None where there is none that does."""
    key = "general.size_label"
    label = gguf_values(files.gguf, lambda name: name == key).get(key) if files.gguf else None
    return label if isinstance(label, str) else None


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
