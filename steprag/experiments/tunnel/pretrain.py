"""The tunnel's start: a model from scratch, trained on episodes of a demonstrator with habits over fresh worlds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from steprag.console.progress import say
from steprag.experiments.tunnel.train import LearntRow, learnt, token_logps
from steprag.experiments.tunnel.words import ASKED, BEGIN, END, PAD, WORDS, encode
from steprag.experiments.tunnel.world import HOPS, FactWorld, demonstrate, habits

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

GUESSABLE = 0.15
"""The share of questions for yes or no."""


@dataclass(frozen=True)
class Recipe:
    """How a start is made. Questions have one hop in the first `single` of all steps, two at most until `double`: in
    short episodes a model learns to read, for there is little else to look at.
    """

    level: str = "middle"
    steps: int = 2000
    batch: int = 64
    rate: float = 2e-3
    single: float = 0.25
    double: float = 0.35
    seed: int = 0


def demonstrations(
    world: FactWorld, level: str, hops: tuple[int, ...], count: int, rng: random.Random
) -> Iterator[LearntRow]:
    """Whole episodes; the policy's own words are learnt."""
    for question in world.questions(count, hops, GUESSABLE, "pretrain"):
        ids, spans = [BEGIN, *encode(question.question), ASKED], []
        for line in demonstrate(world, question, habits(level), rng):
            step = encode(line.text())
            spans.append((len(ids), len(ids) + len(step)))
            ids += step
            for passage in line.passages:
                ids += encode(f"{passage.title} {passage.text}")
        yield LearntRow(ids, tuple(spans))


def untrained() -> LlamaForCausalLM:
    """A Llama of two layers and some 190,000 weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=96, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=BEGIN, eos_token_id=END,
        pad_token_id=PAD,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.02 if "embed" in name else 0.7 / weight.shape[1] ** 0.5)
    return model


def pretrained(recipe: Recipe, begun: LlamaForCausalLM | None = None) -> LlamaForCausalLM:
    """The start that a recipe makes; `begun`: a model to go on from."""
    torch.manual_seed(recipe.seed)
    model, rng = begun or untrained(), random.Random(recipe.seed)
    adam = torch.optim.AdamW(model.parameters(), recipe.rate, betas=(0.9, 0.98), weight_decay=0.01)
    for done, rows in enumerate(_batches(recipe, rng)):
        if done == recipe.steps:
            break
        rate = (
            recipe.rate * min(1.0, (done + 1) / 50) * min(1.0, max(0.05, (recipe.steps - done) / (0.4 * recipe.steps)))
        )
        for group in adam.param_groups:
            group["lr"] = rate
        loss = -token_logps(model, *learnt(rows))[0].mean()
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        if (done + 1) % 100 == 0:
            say(f"tunnel: {done + 1} of {recipe.steps} steps, loss {loss.item():.3f}")
    return model


def _batches(recipe: Recipe, rng: random.Random) -> Iterator[list[LearntRow]]:
    """Batches without end, of a fresh world every sixteenth; rows of like length stand together."""
    done = 0
    for seed in range(10_000 * (recipe.seed + 1), 10_000 * (recipe.seed + 2)):
        share = done / recipe.steps
        hops = (1,) if share < recipe.single else (1, 2) if share < recipe.double else HOPS
        rows = list(demonstrations(FactWorld(seed), recipe.level, hops, 16 * recipe.batch, rng))
        rows.sort(key=lambda row: len(row.ids) + 4 * rng.random())
        groups = [rows[first : first + recipe.batch] for first in range(0, len(rows), recipe.batch)]
        rng.shuffle(groups)
        for group in groups:
            yield group
            done += 1
