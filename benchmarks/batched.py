"""A policy in this process that answers many requests at once, for proofs that must end within minutes on a GPU.

It has `slots` rows of keys and values. A request takes a slot for each completion, all rows write a token at a time,
and a row that has ended makes room for the next request. On CUDA a step of all rows is one replayed graph. It reads
models of Llama's shape (Llama, SmolLM2, Qwen2) as transformers loads them; tests hold it to transformers' own tokens.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import regex
import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

from steprag.engines.tokens import prompt_tokens, turn_stops
from steprag.types import Completion, Message, Sample, Usage

READ_AT_ONCE = 16_384
"""Tokens of prompts in one pass, padding included."""
LEAST_READ, WAITS = 48, 6
"""Requests wait for so many others, or for so many steps, before their prompts are read."""
STRIDE = 128
"""A step attends to the longest row, rounded up to a multiple of this: a graph for each multiple."""


@dataclass(frozen=True)
class _Layer:
    """A decoder layer's weights, those that read the same vector joined."""

    before: Tensor
    qkv: Tensor
    bias: Tensor | None
    out: Tensor
    after: Tensor
    gate_up: Tensor
    down: Tensor


def _layer_of(layer: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    asks = (attention.q_proj, attention.k_proj, attention.v_proj)
    bias = torch.cat([each.bias for each in asks]) if asks[0].bias is not None else None
    qkv = torch.cat([each.weight for each in asks])
    gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
    norms = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
    return _Layer(norms[0], qkv, bias, attention.o_proj.weight, norms[1], gate_up, mlp.down_proj.weight)


class SlotModel:
    """The model with its slots. `length`: tokens that a slot holds, a multiple of `STRIDE`. `graphs`: on CUDA alone."""

    @torch.no_grad()
    def __init__(self, model: Any, slots: int, length: int, graphs: bool = True) -> None:
        config, body = model.config, model.model
        self.slots, self.length, self.device = slots, length, model.device
        self._heads, self._groups, self._eps = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.rms_norm_eps,
        )
        self._layers = [_layer_of(layer) for layer in body.layers]
        self._words, self._head, self._norm = body.embed_tokens.weight, model.lm_head.weight, body.norm.weight
        cos, sin = body.rotary_emb(self._words[:1], torch.arange(length, device=self.device)[None])
        self._cos, self._sin, self._width = cos[0], sin[0], cos.shape[-1]
        room = (len(self._layers), 2, slots, self._groups, length, self._width)
        self._kept = torch.zeros(room, dtype=model.dtype, device=self.device)
        self._tokens, self._places = (torch.zeros(slots, dtype=torch.long, device=self.device) for _ in range(2))
        self._replays = graphs and self.device.type == "cuda"
        self._graphs: dict[int, tuple[Any, Tensor]] = {}

    def _passed(self, ids: Tensor, places: Tensor, attend: Callable[..., Tensor]) -> Tensor:
        """The last layer's vectors of `ids`, both (rows, tokens); `attend(layer, queries, keys, values)`."""
        rows, count = ids.shape
        hidden, half, turned_heads = embedding(ids, self._words), self._width // 2, self._heads + self._groups
        cos, sin = self._cos[places][:, None], self._sin[places][:, None]
        for number, layer in enumerate(self._layers):
            read = rms_norm(hidden, hidden.shape[-1:], layer.before, self._eps)
            heads = linear(read, layer.qkv, layer.bias).view(rows, count, -1, self._width).transpose(1, 2)
            turned, values = heads[:, :turned_heads], heads[:, turned_heads:]
            turned = turned * cos + torch.cat([-turned[..., half:], turned[..., :half]], -1) * sin
            seen = attend(number, turned[:, : self._heads], turned[:, self._heads :], values)
            hidden = hidden + linear(seen.transpose(1, 2).reshape(rows, count, -1), layer.out)
            read = rms_norm(hidden, hidden.shape[-1:], layer.after, self._eps)
            gate, up = linear(read, layer.gate_up).chunk(2, -1)
            hidden = hidden + linear(silu(gate) * up, layer.down)
        return rms_norm(hidden, hidden.shape[-1:], self._norm, self._eps)

    @torch.no_grad()
    def read(self, prompts: Sequence[Sequence[int]], slots: Sequence[Sequence[int]]) -> Tensor:
        """Reads each prompt into its slots; the logits behind its last token: (prompts, vocabulary)."""
        width = max(map(len, prompts))
        ids = torch.tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in prompts], device=self.device)
        into = torch.tensor([slot for some in slots for slot in some], device=self.device)
        whose = torch.tensor([number for number, some in enumerate(slots) for _ in some], device=self.device)

        def attend(number: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            self._kept[number, 0, into, :, :width] = keys[whose]
            self._kept[number, 1, into, :, :width] = values[whose]
            return scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)

        places = torch.arange(width, device=self.device).expand(len(prompts), width)
        last = torch.tensor([len(prompt) - 1 for prompt in prompts], device=self.device)
        hidden = self._passed(ids, places, attend)[torch.arange(len(prompts), device=self.device), last]
        return linear(hidden, self._head)

    @torch.no_grad()
    def step(self, tokens: Sequence[int], places: Sequence[int]) -> Tensor:
        """Feeds a token a slot at its place; the logits behind each: (slots, vocabulary). Idle slots: place 0."""
        self._tokens.copy_(torch.tensor(tokens))
        self._places.copy_(torch.tensor(places))
        width = min(self.length, -(-(max(places) + 1) // STRIDE) * STRIDE)
        if not self._replays:
            return self._stepped(width)
        if width not in self._graphs:
            self._graphs[width] = self._recorded(width)
        graph, logits = self._graphs[width]
        graph.replay()
        return logits

    def _stepped(self, width: int) -> Tensor:
        slots = torch.arange(self.slots, device=self.device)
        hidden_from = torch.arange(width, device=self.device)[None] > self._places[:, None]
        mask = torch.zeros(hidden_from.shape, dtype=self._kept.dtype, device=self.device)
        mask = mask.masked_fill(hidden_from, -math.inf)[:, None, None]

        def attend(number: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            kept = self._kept[number]
            kept[0, slots, :, self._places] = keys[:, :, 0]
            kept[1, slots, :, self._places] = values[:, :, 0]
            asked = queries.reshape(self.slots, self._groups, -1, self._width)  # heads that share keys, as rows
            seen = scaled_dot_product_attention(asked, kept[0, :, :, :width], kept[1, :, :, :width], attn_mask=mask)
            return seen.reshape(self.slots, self._heads, 1, self._width)

        return linear(self._passed(self._tokens[:, None], self._places[:, None], attend)[:, 0], self._head)

    def _recorded(self, width: int) -> tuple[Any, Tensor]:
        """The step as a CUDA graph. Its trials write what the step itself writes, so they may run before it."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._stepped(width)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self._stepped(width)
        return graph, logits


@dataclass(eq=False)
class _Completing:
    """A completion under way in a slot, the `number`-th of what was asked; `place` is where its next token goes."""

    slot: int
    place: int
    number: int
    whose: _Asked
    written: list[int] = field(default_factory=list)


@dataclass(eq=False)
class _Asked:
    """A request: `n` completions of one prompt."""

    ids: list[int]
    n: int
    future: asyncio.Future[tuple[Completion, ...]]
    form: Any = None
    done: dict[int, Completion] = field(default_factory=dict)


class SlotPolicy:
    """A `Policy`. `temperature` 0 is greedy; `min_p` and `most` tokens as `policy.min_p` and `policy.max_tokens`.

    A completion ends with the model's turn, or right behind one of the `closing` tags. Rows draw from one generator, so
    a sample depends on what is asked beside it: `seed` of a request is not looked at. `form` gives the expression that
    a completion of the allowed actions matches: no token is taken that breaks it, as with `policy.constrained`.
    """

    def __init__(
        self, model: SlotModel, tokenizer: Any, closing: Sequence[str], *, temperature: float = 0.0, min_p: float = 0.0,
        most: int = 96, seed: int = 0, form: Callable[[tuple[str, ...]], str] | None = None,
    ) -> None:  # fmt: skip
        self._model, self._tokenizer, self._closing = model, tokenizer, tuple(closing)
        self._temperature, self._min_p, self._most = temperature, min_p, most
        self._noise = torch.Generator(model.device).manual_seed(seed)
        self._stops, ends = turn_stops(tokenizer), {tag[-1] for tag in closing}
        self._closers = {token for text, token in tokenizer.get_vocab().items() if text[-1:] in ends}
        self._free, self._rows = list(range(model.slots)), dict[int, _Completing]()
        self._waiting: list[_Asked] = []
        self._open = set[_Asked]()
        self._waited, self._runs = 0, None
        self._known: dict[tuple[str, ...], list[int]] = {}
        self._form, self._forms = form, dict[tuple[str, ...], Any]()
        self.tokens = self.requests = 0

    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        """`n` completions of one prompt; one that does not fit a slot is cut before its first word."""
        del seed
        if self._form and allowed not in self._forms:
            self._forms[allowed] = regex.compile(self._form(allowed))
        key = tuple(message["content"] for message in messages)
        if key not in self._known:
            self._known[key] = prompt_tokens(messages, self._tokenizer)
        ids = self._known[key]
        if len(ids) + self._most > self._model.length:
            return Sample((Completion("", "length"),) * n, Usage(1, len(ids), 0))
        asked = _Asked(ids, n, asyncio.get_running_loop().create_future(), self._forms.get(allowed))
        self._waiting.append(asked)
        self._open.add(asked)
        if self._runs is None or self._runs.done():
            self._runs = asyncio.ensure_future(self._run())
            self._runs.add_done_callback(self._failed)
        try:
            said = await asked.future
        finally:
            self._open.discard(asked)
        return Sample(said, Usage(1, len(ids), sum(len(one.text) // 4 for one in said)))

    def _failed(self, run: asyncio.Task[None]) -> None:
        """Gives an error to all who wait, so that nobody waits for ever."""
        if not run.cancelled() and (error := run.exception()):
            for asked in [*self._open]:
                if not asked.future.done():
                    asked.future.set_exception(error)

    async def _run(self) -> None:
        """Answers what waits. Between two steps, episodes that were answered go on and ask again."""
        while self._waiting or self._rows:
            for _ in range(3):
                await asyncio.sleep(0)
            self._waited += 1
            wanted = sum(asked.n for asked in self._waiting)
            if wanted and (not self._rows or wanted >= LEAST_READ or self._waited >= WAITS):
                self._admit()
            if self._rows:
                self._step()

    def _admit(self) -> None:
        """Reads the prompts of as many requests as there are free slots for."""
        taken: list[_Asked] = []
        while self._waiting and self._waiting[0].n <= len(self._free) - sum(asked.n for asked in taken):
            taken.append(self._waiting.pop(0))
        if not taken:
            return
        self._waited = 0
        taken.sort(key=lambda asked: len(asked.ids))
        while taken:
            some = min(len(taken), max(1, READ_AT_ONCE // len(taken[-1].ids)))
            group, taken = taken[-some:], taken[:-some]
            slots = [[self._free.pop() for _ in range(asked.n)] for asked in group]
            logits = self._model.read([asked.ids for asked in group], slots)
            rows = [
                _Completing(slot, len(asked.ids), number, asked)
                for asked, own in zip(group, slots, strict=True)
                for number, slot in enumerate(own)
            ]
            self._rows |= {row.slot: row for row in rows}
            each = logits.repeat_interleave(torch.tensor([asked.n for asked in group], device=logits.device), 0)
            for row, token in zip(rows, self._fitting(each, dict(enumerate(rows))), strict=True):
                self._wrote(row, token)

    def _step(self) -> None:
        tokens, places = [0] * self._model.slots, [0] * self._model.slots
        for slot, row in self._rows.items():
            tokens[slot], places[slot] = row.written[-1], row.place
            row.place += 1
        chosen = self._fitting(self._model.step(tokens, places), self._rows)
        for row in list(self._rows.values()):
            self._wrote(row, chosen[row.slot])

    @torch.no_grad()
    def _fitting(self, logits: Tensor, rows: dict[int, _Completing]) -> list[int]:
        """A token for every row of the logits; `rows` are those that must keep to their form. A token that breaks it is
        ruled out and another one chosen, which gives the probabilities of those that fit.
        """
        chosen = self._chosen(logits)
        for place, row in rows.items():
            left = None
            while self._breaks(row, chosen[place]):
                left = logits[place : place + 1].clone() if left is None else left
                left[0, chosen[place]] = -math.inf
                [chosen[place]] = self._chosen(left)
        return chosen

    def _breaks(self, row: _Completing, token: int) -> bool:
        if row.whose.form is None:
            return False
        if token in self._stops:
            return row.whose.form.fullmatch(self._text(row)) is None
        said = self._tokenizer.decode([*row.written, token], clean_up_tokenization_spaces=False)
        return row.whose.form.fullmatch(said, partial=True) is None

    @torch.no_grad()
    def _chosen(self, logits: Tensor) -> list[int]:
        """A token a row: the likeliest, or one that is sampled, by exponential noise."""
        if self._temperature > 0:
            logits = logits.float()
            if self._min_p > 0:
                least = logits.max(-1, keepdim=True).values + math.log(self._min_p)
                logits = logits.masked_fill(logits < least, -math.inf)
            noise = torch.empty_like(logits).exponential_(generator=self._noise)
            logits = logits / self._temperature - noise.log()
        return logits.argmax(-1).tolist()

    def _wrote(self, row: _Completing, token: int) -> None:
        """Takes a row's next token; a completion that has ended frees its slot."""
        finish = None
        if token in self._stops:
            finish = "stop"
        else:
            row.written.append(token)
            if token in self._closers and self._text(row).endswith(self._closing):
                finish = "stop"
            elif len(row.written) >= self._most:
                finish = "length"
        if finish is None:
            return
        asked = row.whose
        asked.done[row.number] = Completion(self._text(row), finish)
        del self._rows[row.slot]
        self._free.append(row.slot)
        self.tokens += len(row.written)
        if len(asked.done) == asked.n:
            self.requests += 1
            asked.future.set_result(tuple(asked.done[number] for number in range(asked.n)))

    def _text(self, row: _Completing) -> str:
        return self._tokenizer.decode(row.written, clean_up_tokenization_spaces=False)
