"""Index and web together: fused, one where the other has nothing, and the threshold between them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from indexes import open_retriever
from indexes.web.sources import FallbackRetriever, FusedRetriever
from steprag.agent.retriever import Choosing, Retriever, SourceChoice, Sourced, url_of
from steprag.config.sections import RetrieverConfig
from steprag.errors import NotJournalled, RetrieverError
from steprag.types import Passage
from tests.fakes import WORLD, DictRetriever
from tests.web_site import HTML, Web, web_file

ASKED = "capital of Albania"


class SharedWords:
    """Scores texts by the share of the query's words that they have."""

    fingerprint = "shared"

    async def ready(self) -> None:
        return None

    async def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        wanted = set(query.lower().split())
        return [len(wanted & set(text.lower().replace(".", " ").split())) / len(wanted) for text in texts]

    async def aclose(self) -> None:
        return None


class Failing(DictRetriever):
    """Fails each search with `error`."""

    error: Exception = RetrieverError("rate limit")

    async def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
        raise self.error


def page(name: str, text: str) -> Passage:
    return Passage(f"https://{name}.org/#0123456789abcdef", name, text)


FAR = (page("quito", "Quito is the capital of Ecuador."), page("oslo", "Oslo is the capital of Norway."))


def searched(retriever: Retriever, query: str, top_k: int = 3) -> tuple[Passage, ...]:
    return asyncio.run(retriever.search(query, top_k))


def test_both_rankings_become_one_by_rank() -> None:
    shared = WORLD[0]
    local, far = DictRetriever((shared, WORLD[1])), DictRetriever((*FAR, shared))
    found = searched(FusedRetriever(local, far), "Quito Ecuador capital")
    ranks = {passage.id: rank for rank, passage in enumerate(found)}
    assert len(found) == 3
    assert ranks[shared.id] == 0, "what both find stands first"
    by_hand = {p.id: 0.0 for p in (*WORLD, *FAR)}
    for retriever in (local, far):
        for rank, passage in enumerate(searched(retriever, "Quito Ecuador capital"), 1):
            by_hand[passage.id] += 61 / (60 + rank) / 2
    assert [p.score for p in found] == [round(by_hand[p.id], 6) for p in found]
    assert found[0].score is not None
    assert found[0].score < 1


def test_the_web_is_asked_where_the_index_has_nothing_alike() -> None:
    far = DictRetriever(FAR)
    auto = FallbackRetriever(DictRetriever(WORLD), far, SharedWords(), 0.75)
    assert isinstance(auto, Choosing)
    assert searched(auto, "capital Tirana")[0].title == "Tirana"
    assert auto.choice("capital Tirana") == SourceChoice(
        "local", "the index's best passage is 1.00 like the query, the threshold is 0.75"
    )
    assert far.searched == [], "no request for what the index has"
    assert searched(auto, "Quito Ecuador capital")[0].title == "quito"
    choice = auto.choice("Quito Ecuador capital")
    assert choice == SourceChoice("web", "the index's best passage is 0.33 like the query, the threshold is 0.75")
    assert auto.choice("never asked") is None
    empty = FallbackRetriever(DictRetriever(()), far, SharedWords(), 0.0)
    assert searched(empty, "Oslo")[0].title == "oslo"
    other = FallbackRetriever(DictRetriever(WORLD), far, SharedWords(), 0.5)
    assert other.fingerprint != auto.fingerprint


@pytest.mark.parametrize("auto", [True, False])
def test_where_the_web_fails_the_index_answers_and_says_so(auto: bool, capsys: pytest.CaptureFixture[str]) -> None:
    local, far = DictRetriever(WORLD), Failing()
    retriever = FallbackRetriever(local, far, SharedWords(), 2.0) if auto else FusedRetriever(local, far)
    assert searched(retriever, "capital Tirana") == searched(local, "capital Tirana")
    assert retriever.choice("capital Tirana") == SourceChoice("local", "the web could not be searched: rate limit")
    assert "the index answers alone: rate limit" in capsys.readouterr().err
    far.error = NotJournalled("the frozen snapshot lacks it")
    with pytest.raises(NotJournalled):
        searched(retriever, "capital Tirana")


def test_a_web_file_with_a_local_index_has_every_source_at_hand(
    here: Web, encoder: Path, world_index: Path, tmp_path: Path
) -> None:
    here.pages |= {"/tirana": (404, HTML, b""), "/lek": (404, HTML, b"")}

    async def ask(source: str, **keys: Any) -> dict[str, list[str | None]]:
        file = web_file(tmp_path, here, encoder, local=str(world_index), source=source, **keys)
        async with aclosing(open_retriever(file)) as retriever:
            await retriever.ready()
            assert isinstance(retriever, Sourced)
            assert isinstance(retriever, Choosing)
            found = {name: await one.search(ASKED, 4) for name, one in retriever.sources.items()}
            assert await retriever.search(ASKED, 4) == found[source]
            assert retriever.fingerprint == retriever.sources[source].fingerprint
            choice = retriever.choice(ASKED)
            assert (choice.source if choice else None) == {"auto": "local", "both": "both"}.get(source)
            return {name: [url_of(p.id) for p in passages] for name, passages in found.items()}

    urls = asyncio.run(ask("auto", threshold=-1.0))
    assert urls["local"] == urls["auto"] == [None] * 4
    assert set(urls["web"]) == {here.address + "/tirana", here.address + "/lek"}
    assert set(urls["both"]) == {None, *urls["web"]}
    assert asyncio.run(ask("both", threshold=2.0))["auto"] == urls["web"]
    before = here.asked.count("/search")
    asyncio.run(ask("web"))
    assert here.asked.count("/search") == before + 1, "one search for all that share the web"


def test_passages_are_ranked_by_the_encoder_of_the_local_index(
    here: Web, encoder: Path, world_index: Path, tmp_path: Path
) -> None:
    def fingerprint(**keys: Any) -> str:
        file = web_file(tmp_path, here, keys.pop("encoder", None), **keys)
        retriever = open_retriever(file, RetrieverConfig(preload=False))
        assert isinstance(retriever, Sourced)
        return retriever.sources["web"].fingerprint

    keys = {"local": str(world_index), "source": "auto"}
    assert fingerprint(**keys) == fingerprint(**keys, encoder=encoder)
    assert fingerprint(**keys) != fingerprint(**keys, encoder="minilm")
