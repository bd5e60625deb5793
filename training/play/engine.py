"""Completions by an engine beside the trainer (`grpo.engine`): a vLLM that is started here, or one at a URL.

Ids go out, ids and the log-probabilities that they were sampled with come back. After each update the adapter is loaded
under a name that no adapter had before, and requests ask for that name: older weights cannot answer.
"""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
from pydantic import BaseModel

from steprag.console.progress import say
from steprag.engines.launch import EngineSpec
from steprag.engines.server import serving_us
from steprag.errors import PolicyError, PolicyUnavailable, TrainingError, quoted
from steprag.net.bounded_http import BoundedClient, HttpReply, pause
from steprag.policy.client import api_key
from steprag.policy.scoring import ROUNDING
from steprag.records.json_text import decoded
from training.config import TrainConfig
from training.play.sampling import SampledStep

KEY = "OPENAI_API_KEY"
"""The variable with the key of an engine at a URL."""
SECONDS = 1800.0
"""The longest that a completion takes, the wait for its turn included."""
RETRIES = 4
RESTARTS = 3
"""How often an engine of ours that ended is started again."""
IMPOSSIBLE = -9999.0
"""vLLM's number for a log-probability of minus infinity."""


class _Logprobs(BaseModel):
    token_logprobs: list[float]


class _Choice(BaseModel):
    token_ids: list[int]
    prompt_token_ids: list[int] | None = None
    finish_reason: str
    logprobs: _Logprobs


class _Reply(BaseModel):
    choices: list[_Choice]


class Engine:
    """A `Sampler`: every episode asks by itself, and the engine batches what is there.

    `ends`, `vocabulary`: ids that end a turn, and how many ids there are. `folder` holds the adapter that is loaded.
    """

    def __init__(self, config: TrainConfig, folder: Path, ends: list[int], vocabulary: int) -> None:
        self._config, self._folder, self._ends, self._vocabulary = config, folder, ends, vocabulary
        self._run, self._lock, self._starts = secrets.token_hex(4), asyncio.Lock(), 0
        self._stack = ExitStack()
        self._adapter: Path | None = None
        self.name = ""
        """The adapter that answers."""
        self._own = config.grpo.engine == "vllm"

    def start(self) -> None:
        """Starts the engine where it is ours. Raises ConfigError and PolicyUnavailable."""
        section, url, key = self._config.grpo, str(self._config.grpo.engine), None
        if self._own:
            self._stack.close()
            say("train: vLLM is started to sample the episodes" if not self._starts else
                "train: vLLM has ended; it is started again")  # fmt: skip
            asked = {"dtype": "bfloat16" if self._config.bf16 else "float32", **section.engine_args}
            fixed: dict[str, Any] = {"logprobs_mode": "processed_logprobs", "generation_config": "vllm"}
            spec = EngineSpec(
                "vllm", self._config.model, parallel=-(-section.at_once // 4), context=self._config.max_length,
                args=asked | fixed, lora_rank=self._config.lora.rank,
            )  # fmt: skip
            endpoint = self._stack.enter_context(serving_us(spec))
            url, key = endpoint.base_url, endpoint.key
        self._starts += 1
        key = key or api_key(KEY, url)
        self._url = url.rstrip("/").removesuffix("/v1")
        self._client = BoundedClient(self._url, seconds=SECONDS, secret=key, headers={"Authorization": f"Bearer {key}"})

    async def aclose(self) -> None:
        """Unloads the adapter from an engine that stays, and ends one of ours."""
        try:
            if self._adapter and not self._own:
                await self._unload(self._adapter.name)
            await self._client.aclose()
        finally:
            self._stack.close()

    async def load(self, save: Callable[[Path], object], step: int) -> None:
        """From now on the engine answers with the adapter that `save` writes. Raises TrainingError."""
        made = self._folder / f"{self._run}-{step}"
        unfinished = made.with_name(f".{made.name}")
        self._folder.mkdir(parents=True, exist_ok=True)
        save(unfinished)
        os.replace(unfinished, made)
        older, self._adapter, self.name = self._adapter, made, made.name
        seen = self._starts
        try:
            await self._load()
        except aiohttp.ClientError as error:
            await self._revive(seen, error)
        if older:
            await self._unload(older.name)
            shutil.rmtree(older)

    async def sample(self, number: int, prompt: list[int], seed: int) -> SampledStep:
        """As `Sampler.sample`. Raises PolicyUnavailable where the engine is gone."""
        section = self._config.grpo
        body = {
            "model": self.name, "prompt": prompt, "max_tokens": section.max_tokens, "seed": seed % 2**63,
            "temperature": section.temperature, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0,
            "presence_penalty": 0.0, "frequency_penalty": 0.0, "stop_token_ids": self._ends, "logprobs": 0,
            "return_token_ids": True, "skip_special_tokens": False,
        }  # fmt: skip
        reply = await self._asked("/v1/completions", body)
        if reply.status != 200:
            raise PolicyError(f"{self._url}: status {reply.status}: {quoted(reply.content.decode(errors='replace'))}")
        try:
            return self._read(prompt, _Reply.model_validate(decoded(reply.content)).choices[0])
        except (ValueError, LookupError) as error:
            why = " ".join(str(error).split())
            raise PolicyError(f"{self._url}: episode {number + 1}: a completion cannot be learnt from: {why}") from None

    def leave(self, number: int) -> None:
        """Nobody waits for another episode."""

    def _read(self, prompt: list[int], said: _Choice) -> SampledStep:
        """The completion. Raises ValueError where it is not what the adapter sampled, whole and to its end."""
        ids, logps = said.token_ids, said.logprobs.token_logprobs
        if said.prompt_token_ids not in (None, prompt):
            raise ValueError("the engine read another prompt than it was sent (prompt_token_ids)")
        if not ids or len(ids) != len(logps):
            raise ValueError(f"{len(ids)} token_ids and {len(logps)} log-probabilities")
        if not all(0 <= token < self._vocabulary for token in ids):
            raise ValueError(f"token_ids beyond the vocabulary of {self._vocabulary}")
        if not all(math.isfinite(one) and IMPOSSIBLE < one <= ROUNDING for one in logps):
            raise ValueError("a log-probability is none of a sampled token")
        ends = [place for place, token in enumerate(ids) if token in self._ends]
        whole = {"stop": ends == [len(ids) - 1], "length": not ends and len(ids) == self._config.grpo.max_tokens}
        if not whole.get(said.finish_reason, False):
            raise ValueError(f"{len(ids)} token_ids that end in {ids[-1]}, with finish_reason {said.finish_reason!r}")
        return SampledStep(prompt, ids, logps=logps)

    async def _asked(self, path: str, body: object) -> HttpReply:
        """The reply, asked for again where the engine is busy or lost; one of ours is started again."""
        for attempt in range(RETRIES + 1):
            seen = self._starts
            try:
                reply = await self._client.post(f"{self._url}{path}", body)
            except aiohttp.ClientError as error:
                await self._revive(seen, error, attempt)
                continue
            if attempt == RETRIES or (reply.status < 500 and reply.status != 429):
                return reply
            await asyncio.sleep(pause(attempt, reply.headers))
        raise self._gone("no reply")

    async def _revive(self, seen: int, error: aiohttp.ClientError, attempt: int = RETRIES) -> None:
        """Starts an engine of ours again, once for all episodes that lost it, with the same adapter; waits for others.

        `seen`: how often it had been started when it was asked.
        """
        if not self._own and attempt < RETRIES:
            await asyncio.sleep(pause(attempt, {}))
            return
        async with self._lock:
            if self._starts > seen:
                return
            if not self._own or self._starts > RESTARTS:
                raise self._gone(str(error) or type(error).__name__)
            await self._client.aclose()
            self.start()
            try:
                await self._load()
            except aiohttp.ClientError as again:
                raise self._gone(str(again) or type(again).__name__) from None

    def _gone(self, why: str) -> PolicyUnavailable:
        return PolicyUnavailable(
            f"the engine at {self._url} is gone ({why}); start it and this command again: the run resumes at its last "
            "checkpoint"
        )

    async def _load(self) -> None:
        folder = self._adapter
        if folder is None:
            return
        body = {"lora_name": folder.name, "lora_path": str(folder)}
        reply = await self._client.post(f"{self._url}/v1/load_lora_adapter", body)
        if reply.status != 200:
            said = quoted(reply.content.decode(errors="replace"))
            raise TrainingError(
                f"{self._url} does not load the adapter {folder} (status {reply.status}: {said}); a vLLM at a URL "
                f"needs --enable-lora --max-lora-rank {self._config.lora.rank} --logprobs-mode processed_logprobs, "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and this disk"
            )

    async def _unload(self, name: str) -> None:
        """Makes room; an engine that was started since has that adapter no longer and says so, which is no harm."""
        try:
            await self._client.post(f"{self._url}/v1/unload_lora_adapter", {"lora_name": name})
        except aiohttp.ClientError as error:
            say(f"train: {self._url} does not unload adapter {name} ({error or type(error).__name__})")


@contextmanager
def opened_engine(
    config: TrainConfig, runner: asyncio.Runner, folder: Path, ends: list[int], vocabulary: int
) -> Iterator[Engine | None]:
    """The engine that `grpo.engine` names, for the block; None where this process samples."""
    if config.grpo.engine is None:
        yield None
        return
    engine = Engine(config, folder.absolute(), ends, vocabulary)
    engine.start()
    try:
        yield engine
    finally:
        runner.run(engine.aclose())
