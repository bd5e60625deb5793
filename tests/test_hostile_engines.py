"""Engines that are served to this machine want a key, so no web page can ask them."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request

import httpx2
import pytest
from fastapi import FastAPI

from data_generation.config import GenerateConfig
from steprag.agent.grammars import TRANSCRIPT
from steprag.config.load import load_config
from steprag.engines.launch import ENGINE_KEY, EngineSpec, command
from steprag.engines.server import serving_us
from steprag.engines.transformers_serve import with_scores
from steprag.policy.client import open_policy
from steprag.types import Message

KEY = "sk-canary-0123456789"


@pytest.mark.parametrize("key", [None, KEY])
def test_the_transformers_server_wants_its_key(key: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENGINE_KEY, raising=False)
    if key:
        monkeypatch.setenv(ENGINE_KEY, key)

    def build(model_manager: object, *, generation_state: object) -> FastAPI:
        app = FastAPI()
        app.add_api_route("/health", lambda: "well")
        app.add_api_route("/v1/models", lambda: ["m"])
        return app

    async def statuses() -> list[int]:
        transport = httpx2.ASGITransport(with_scores(build)(None, generation_state=None))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            sent = (
                ("/health", "x"),
                ("/v1/models", "x"),
                ("/score", ""),
                ("/v1/models", KEY),
                ("/v1/models", "\u00fc"),
            )
            headers = [[(b"Authorization", f"Bearer {given}".encode())] for _, given in sent]
            return [
                (await client.get(path, headers=one)).status_code for (path, _), one in zip(sent, headers, strict=True)
            ]

    assert asyncio.run(statuses()) == ([200, 401, 401, 200, 401] if key else [200, 200, 405, 200, 200])


def test_the_key_of_an_engine_of_ours_stands_in_no_command_line() -> None:
    pytest.importorskip("xllamacpp")
    built = command(EngineSpec(key=KEY))
    assert KEY not in " ".join(built.argv)
    assert KEY not in repr(EngineSpec(key=KEY))
    assert KEY in built.env.values()


@pytest.mark.slow
def test_an_engine_of_ours_answers_nobody_else() -> None:
    config = load_config(GenerateConfig).policy

    async def sampled() -> str:
        async with open_policy(config, TRANSCRIPT) as policy, policy.beside(config, TRANSCRIPT) as other:
            asked = (Message(role="user", content="who?"),)
            await other.sample(asked, ("answer",), n=1, seed=1)
            return (await policy.sample(asked, ("answer",), n=1, seed=1)).completions[0].text

    assert asyncio.run(sampled())
    with serving_us(EngineSpec()) as endpoint:
        body = b'{"messages": [{"role": "user", "content": "?"}], "max_tokens": 1}'
        for path in ("/chat/completions", "/completions"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(endpoint.base_url + path, body, timeout=30)
