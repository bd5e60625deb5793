"""The tunnel's policy in this process: requests that wait at the same time are answered as one batch.

It is asked by the same environment, search and rollouts as a policy behind an endpoint.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from apps.tunnel import model
from apps.tunnel.model import FACTS, Vocabulary
from steprag.types import Completion, Message, Sample, Usage


@dataclass(eq=False)
class _Request:
    """A completion under way. `seed` None is greedy; `given`: a text that is scored, not sampled."""

    ids: list[int]
    seed: int | None
    given: list[int]
    future: asyncio.Future[Completion]
    written: list[int] = field(default_factory=list)

    def ended(self, closing: frozenset[int]) -> bool:
        """Whether its last token is the end."""
        return bool(self.written) and self.written[-1] in closing


class BatchedPolicy:
    """A `Policy` and a `Scorer`. `temperature` 0 is greedy. A completion ends at its closing tag."""

    def __init__(self, weights: model.Weights, temperature: float = 1.0, words: Vocabulary = FACTS) -> None:
        self._weights, self._temperature, self._words = weights, temperature, words
        self._waiting: list[_Request] = []
        self._answering: list[_Request] = []
        self._runs: asyncio.Task[None] | None = None
        layers, width = model.sizes(weights)
        self._kept = torch.zeros(layers, 2, words.batch, model.TURNING, words.longest, width // model.TURNING)
        """Keys and values of the tokens of episodes, a slot each."""
        self._fed: dict[int, list[int]] = {slot: [] for slot in range(words.batch)}
        """Those tokens by slot, the longest unused first."""

    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        """`n` completions of one prompt."""
        del allowed  # the policy has learnt the grammar; what breaks it is refused, as anywhere
        ids = self._words.prompt(messages)
        seeds = [None] * n if self._temperature == 0 else [seed * 64 + place for place in range(n)]
        said = await asyncio.gather(*(self._asked(ids, each, []) for each in seeds))
        return Sample(tuple(said), Usage(1, len(ids), sum(len(self._words.encode(one.text)) for one in said)))

    async def score(self, messages: tuple[Message, ...], text: str) -> Sample:
        """The log-probabilities of the words of `text`."""
        ids, given = self._words.prompt(messages), self._words.encode(text)
        return Sample((await self._asked(ids, None, given),), Usage(1, len(ids) + len(given), 0))

    def _asked(self, ids: list[int], seed: int | None, given: list[int]) -> asyncio.Future[Completion]:
        row = _Request(ids, seed, given, asyncio.get_running_loop().create_future())
        self._waiting.append(row)
        if self._runs is None or self._runs.done():
            self._runs = asyncio.ensure_future(self._run())
            self._runs.add_done_callback(self._failed)
        return row.future

    def _failed(self, run: asyncio.Task[None]) -> None:
        """Gives an error to all who wait, so that nobody waits for ever."""
        if not run.cancelled() and (error := run.exception()):
            for row in (*self._answering, *self._waiting):
                if not row.future.done():
                    row.future.set_exception(error)
            self._waiting = []

    async def _run(self) -> None:
        """Answers what waits, once nobody else is about to ask."""
        while self._waiting:
            still = 0
            while still < 4:
                before = len(self._waiting)
                await asyncio.sleep(0)
                still = still + 1 if len(self._waiting) == before else 0
            self._answering, self._waiting = sorted(self._waiting, key=lambda row: len(row.ids)), []
            for given, answer in ((True, self._score), (False, self._sample)):
                some = [row for row in self._answering if bool(row.given) == given]
                for first in range(0, len(some), self._words.batch):
                    answer(some[first : first + self._words.batch])

    @torch.no_grad()
    def _score(self, rows: list[_Request]) -> None:
        ids = padded([row.ids + row.given for row in rows])
        hidden = model.forward(self._weights, ids, torch.arange(ids.shape[1]).expand_as(ids))
        for number, row in enumerate(rows):
            first, count = len(row.ids) - 1, len(row.given)
            told = model.logits(self._weights, hidden[number, first : first + count]).log_softmax(-1)
            logps = tuple(told[range(count), row.given].tolist())
            row.future.set_result(Completion(self._words.decode(row.given), "scored", logps))

    @torch.no_grad()
    def _sample(self, rows: list[_Request]) -> None:
        """Writes all rows token by token; those that have ended idle until the last one has."""
        noise = [np.random.default_rng(row.seed) for row in rows if row.seed is not None]
        slots, known = self._taken(rows)
        ends = torch.tensor([len(row.ids) for row in rows])
        kept = self._kept[:, :, slots, :, : int(ends.max()) + self._words.most]
        ids, places = padded([row.ids[first:] for row, first in zip(rows, known, strict=True)]), torch.tensor(known)
        for _ in range(self._words.most):
            at = (places[:, None] + torch.arange(ids.shape[1])).clamp(max=kept.shape[-2] - 1)
            seen = torch.arange(kept.shape[-2]) <= at[:, None, :, None]
            hidden = model.forward(self._weights, ids, at, seen, kept)
            told = hidden[torch.arange(len(rows)), ends - places - 1]
            chosen = self._chosen(model.logits(self._weights, told), noise)
            for row, token in zip(rows, chosen, strict=True):
                if not row.ended(self._words.closing):
                    row.written.append(token)
            if all(row.ended(self._words.closing) for row in rows):
                break
            places, ends, ids = ends, ends + 1, torch.tensor(chosen)[:, None]
        self._kept[:, :, slots, :, : kept.shape[-2]] = kept
        for slot, row in zip(slots, rows, strict=True):
            self._fed[slot] = [*row.ids, *row.written[:-1]]
            finish = "stop" if row.ended(self._words.closing) else "length"
            row.future.set_result(Completion(self._words.decode(row.written), finish))

    def _taken(self, rows: list[_Request]) -> tuple[list[int], list[int]]:
        """A slot a row, that of its own question if one is free, and how many of its tokens are fed: never all."""
        same: dict[tuple[int, ...], list[int]] = {}
        for slot, fed in self._fed.items():
            same.setdefault(_question(fed), []).append(slot)
        taken: dict[int, int] = {}
        for row in rows:
            own = same.get(_question(row.ids), ())
            held = [(_common(self._fed[slot], row.ids), slot) for slot in own if slot not in taken]
            count, slot = max(held) if held else (0, next(slot for slot in self._fed if slot not in taken))
            taken[slot] = count
        for slot in taken:
            self._fed[slot] = self._fed.pop(slot)
        return list(taken), list(taken.values())

    def _chosen(self, told: Tensor, noise: list[np.random.Generator]) -> list[int]:
        """A token a row: sampled by Gumbel noise of the row's own, so that no row depends on its neighbours."""
        if self._temperature > 0:
            drawn = np.stack([rng.gumbel(size=len(self._words.words)) for rng in noise])
            told = told / self._temperature + torch.from_numpy(drawn).to(told.dtype)
        return told.argmax(-1).tolist()


def _question(ids: list[int]) -> tuple[int, ...]:
    """The tokens of an episode's question; none of an empty slot."""
    return tuple(ids[: ids.index(model.ASKED)] if ids else ())


def _common(one: list[int], other: list[int]) -> int:
    """How many tokens both begin with, the last one of `other` left out."""
    most = min(len(one), len(other) - 1)
    if one[:most] == other[:most]:
        return most
    return next(place for place in range(most) if one[place] != other[place])


def padded(rows: list[list[int]]) -> Tensor:
    """Rows of ids as one tensor, padded on the right."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=model.PAD)
