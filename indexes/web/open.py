"""A web file to a retriever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from indexes.folder.manifest import read_index_manifest
from indexes.web.config import WebConfig, WebFileConfig
from indexes.web.pages import AGENT, Pages
from indexes.web.providers import DdgsProvider, HttpProvider, Provider
from indexes.web.ranking import EncoderRanker
from indexes.web.retriever import WebRetriever
from indexes.web.snapshot import Snapshot
from indexes.web.sources import FallbackRetriever, FusedRetriever, SourcesRetriever
from steprag import __version__
from steprag.agent.retriever import Retriever
from steprag.config.load import load_config
from steprag.errors import ConfigError, StepragError

Opened = Callable[[str], Retriever]
"""Opens an index folder or a service's URL."""


def open_web(path: Path, opened: Opened) -> Retriever:
    """The retriever of a web file; `opened` opens the local index that it names. Raises ConfigError with file and key.

    Where there is a local index, the retriever has all of web, local, both and auto at hand (`Sourced`).
    """
    config = load_config(WebFileConfig, str(path)).web
    if config.local is None:
        return _web(config, EncoderRanker(config.encoder))
    if config.local.endswith((".yaml", ".yml")):
        raise ConfigError(f"{path}: web.local names an index folder or a service's URL, not a file")
    local = opened(config.local)
    manifest = None if "://" in config.local else read_index_manifest(Path(config.local).expanduser())
    ranker = EncoderRanker(config.encoder, manifest)
    web = _web(config, ranker)
    sources = {
        "web": web,
        "local": local,
        "both": FusedRetriever(local, web),
        "auto": FallbackRetriever(local, web, ranker, config.threshold),
    }
    return SourcesRetriever(sources, config.source)


def _web(config: WebConfig, ranker: EncoderRanker) -> WebRetriever:
    agent = config.user_agent or f"{AGENT}/{__version__}"
    snapshot = Snapshot(Path(config.snapshot).expanduser() if config.snapshot else None, frozen=config.frozen)
    try:
        provider = None if config.frozen else _provider(config, agent)
        pages = None if config.frozen else Pages(config, agent)
    except StepragError:
        snapshot.close()
        raise
    return WebRetriever(config, ranker, snapshot, provider, pages)


def _provider(config: WebConfig, agent: str) -> Provider:
    return DdgsProvider(config) if config.provider == "ddgs" else HttpProvider(config, agent)
