"""The tunnel's policy in this process: requests that wait at the same time are answered as one batch.

It is asked by the same environment, search and rollouts as a policy behind an endpoint.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from cachetools import LRUCache
from torch import Tensor

from steprag.experiments.tunnel.words import BEGIN, CLOSING, PAD, WORDS, decode, encode
from steprag.types import Completion, Message, Sample, Usage

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

MOST_TOKENS = 8
"""Tokens a completion; the longest step has six."""
LARGEST_BATCH = 512
REMEMBERED = 2048
"""Prompts whose keys and values are kept for the next step, some 150 kB each."""
MOST_READ = 16
"""Tokens that a prompt has at most more than what was fed before: the closing tag and three passages."""


def prompt_ids(messages: tuple[Message, ...]) -> list[int]:
    """The tokens of a prompt: the question, and what the assistant has written and read so far."""
    question, *begun = messages
    written = encode(begun[0]["content"]) if begun else []
    return [BEGIN, *encode(question["content"]), *written]


@dataclass(eq=False)
class _Request:
    """A completion under way. `seed` None is greedy; `given`: a text that is scored, not sampled."""

    ids: list[int]
    seed: int | None
    future: asyncio.Future[Completion]
    given: list[int]
    written: list[int] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether nothing is to be written behind its last token."""
        return bool(self.written) and self.written[-1] in CLOSING


class BatchedPolicy:
    """A `Policy` and a `Scorer`. `temperature` 0 is greedy. A completion ends at its closing tag."""

    def __init__(self, model: LlamaForCausalLM, temperature: float = 1.0) -> None:
        self._model, self._temperature = model.eval(), temperature
        self._waiting: list[_Request] = []
        self._runs: asyncio.Task[None] | None = None
        self._known: LRUCache[tuple[int, ...], Tensor] = LRUCache(REMEMBERED)

    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        """`n` completions of one prompt."""
        del allowed  # the policy has learnt the grammar; what breaks it is refused, as anywhere
        ids = prompt_ids(messages)
        seeds = [None] * n if self._temperature == 0 else [seed * 64 + place for place in range(n)]
        said = await asyncio.gather(*(self._asked(ids, each, []) for each in seeds))
        return Sample(tuple(said), Usage(1, len(ids), sum(len(encode(one.text)) for one in said)))

    async def score(self, messages: tuple[Message, ...], text: str) -> Sample:
        """The log-probabilities of the words of `text`."""
        ids, given = prompt_ids(messages), encode(text)
        return Sample((await self._asked(ids, None, given),), Usage(1, len(ids) + len(given), 0))

    def _asked(self, ids: list[int], seed: int | None, given: list[int]) -> asyncio.Future[Completion]:
        row = _Request(ids, seed, asyncio.get_running_loop().create_future(), given)
        self._waiting.append(row)
        if self._runs is None or self._runs.done():
            self._runs = asyncio.ensure_future(self._run())
        return row.future

    async def _run(self) -> None:
        """Answers what waits, once nobody else is about to ask."""
        while self._waiting:
            still = 0
            while still < 4:
                before = len(self._waiting)
                await asyncio.sleep(0)
                still = still + 1 if len(self._waiting) == before else 0
            rows, self._waiting = sorted(self._waiting, key=lambda row: len(row.ids)), []
            for answer, some in (
                (self._score, [row for row in rows if row.given]),
                (self._sample, [row for row in rows if not row.given]),
            ):
                for first in range(0, len(some), LARGEST_BATCH):
                    answer(some[first : first + LARGEST_BATCH])

    @torch.no_grad()
    def _score(self, rows: list[_Request]) -> None:
        logits = self._model(input_ids=padded([row.ids + row.given for row in rows]), use_cache=False).logits
        for number, row in enumerate(rows):
            first, count = len(row.ids) - 1, len(row.given)
            logps = logits[number, first : first + count].log_softmax(-1)[range(count), row.given]
            row.future.set_result(Completion(decode(row.given), "scored", tuple(logps.tolist())))

    @torch.no_grad()
    def _sample(self, rows: list[_Request]) -> None:
        """Writes all rows token by token; those that have ended idle until the last one has."""
        noise = [None if row.seed is None else np.random.default_rng(row.seed) for row in rows]
        begun = _Begun([row.ids for row in rows], [self._remembered(row.ids) for row in rows])
        for _ in range(MOST_TOKENS):
            for row, token in zip(rows, self._chosen(begun.logits(self._model), noise), strict=True):
                if not row.ended:
                    row.written.append(token)
            if all(row.ended for row in rows):
                break
            begun.feed([row.written[-1] for row in rows])
        for number, row in enumerate(rows):
            fed = (*row.ids, *row.written[:-1])
            self._known[fed] = begun.row(number, len(fed))
            row.future.set_result(Completion(decode(row.written), "stop" if row.ended else "length"))

    def _remembered(self, ids: list[int]) -> Tensor | None:
        """Keys and values of the longest known beginning of a prompt."""
        for known in range(len(ids) - 1, max(0, len(ids) - MOST_READ), -1):
            if (found := self._known.get(tuple(ids[:known]))) is not None:
                return found
        return None

    def _chosen(self, logits: Tensor, noise: list[np.random.Generator | None]) -> list[int]:
        """A token a row: sampled by Gumbel noise of the row's own, so that no row depends on its neighbours."""
        if self._temperature > 0:
            drawn = np.stack([rng.gumbel(size=len(WORDS)) for rng in noise if rng is not None])
            logits = logits / self._temperature + torch.from_numpy(drawn).to(logits.dtype)
        return logits.argmax(-1).tolist()


class _Begun:
    """Rows whose tokens are fed to a model, padded on the left, with keys and values of what was fed before."""

    def __init__(self, rows: list[list[int]], known: list[Tensor | None]) -> None:
        from transformers import DynamicCache

        self._cache = DynamicCache()
        told = [0 if one is None else one.shape[-2] for one in known]
        self._next = [ids[count:] for ids, count in zip(rows, told, strict=True)]
        self._fed, width = torch.tensor(told), max(told)
        self._mask = torch.arange(width)[None] >= width - self._fed[:, None]
        if width:
            first = next(one for one in known if one is not None)
            self._fill(first.new_zeros(len(rows), *first.shape[:-2], width, first.shape[-1]), known)

    def _fill(self, room: Tensor, known: list[Tensor | None]) -> None:
        for number, one in enumerate(known):
            if one is not None:
                room[number, ..., room.shape[-2] - one.shape[-2] :, :] = one
        for layer in range(room.shape[1]):
            self._cache.update(room[:, layer, 0], room[:, layer, 1], layer)

    def feed(self, tokens: list[int]) -> None:
        """Puts one more token behind every row."""
        self._next = [[token] for token in tokens]

    def logits(self, model: LlamaForCausalLM) -> Tensor:
        """Feeds what waits; the logits behind each row's last token."""
        width = max(map(len, self._next))
        ids = torch.tensor([[PAD] * (width - len(row)) + row for row in self._next])
        counts = torch.tensor([len(row) for row in self._next])
        fresh = torch.arange(width)[None] >= width - counts[:, None]
        places = self._fed[:, None] + (torch.arange(width)[None] - width + counts[:, None]).clamp(min=0)
        self._mask = torch.cat([self._mask, fresh], 1)
        self._fed = self._fed + counts
        told = model(
            input_ids=ids, attention_mask=self._mask.long(), position_ids=places, past_key_values=self._cache,
            use_cache=True, logits_to_keep=1,
        )  # fmt: skip
        return told.logits[:, -1]

    def row(self, number: int, tokens: int) -> Tensor:
        """Keys and values of a row's first `tokens`: (layers, 2, heads, tokens, width)."""
        kept = self._mask[number].nonzero()[:tokens, 0]
        parts = [torch.stack([layer.keys[number], layer.values[number]]) for layer in self._cache.layers]  # pyright: ignore
        return torch.stack(parts)[..., kept, :]


def padded(rows: list[list[int]]) -> Tensor:
    """Rows of ids as one tensor, padded on the right."""
    ids = np.full((len(rows), max(map(len, rows))), PAD, dtype=np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
    return torch.from_numpy(ids)
