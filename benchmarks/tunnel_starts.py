"""Makes the starts of `steprag tunnel` (apps/tunnel/start): models from scratch, trained on episodes of
a demonstrator with habits over fresh worlds.

    python -m benchmarks.tunnel_starts FOLDER          # the three starts, a quarter of an hour of one core
    python -m benchmarks.tunnel_starts FOLDER weak     # one of those that are made of the shipped middle start

The weak and the strong start go on from the middle one, and are kept as 8-bit differences from it.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from apps.tunnel.model import (
    BEGIN,
    END,
    FACTS,
    INNER,
    LAYERS,
    PAD,
    START,
    TURNING,
    WIDTH,
)  # fmt: skip
from apps.tunnel.train import LearntRow, packed
from apps.tunnel.world import (
    HOPS,
    KIND_OF,
    MISREAD,
    MISTAKEN,
    MOST_SEARCHES,
    NOTHING,
    RELATIONS,
    FactWorld,
    parts_of,
)
from steprag.agent.grammars import TRANSCRIPT
from steprag.console.progress import say
from steprag.types import Passage, Question

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

NAMES = tuple(RELATIONS)


@dataclass(frozen=True)
class Habits:
    """How often the demonstrator errs, by relation: in its word, and in the kind that it keeps. `stop`: it gives up."""

    word: dict[str, float]
    kind: dict[str, float]
    stop: float = 0.06


LEVELS = {"weak": (0.2, 0.4, 0.6, 0.75), "middle": (0.05, 0.15, 0.35, 0.65), "strong": (0.02, 0.05, 0.15, 0.55)}
"""Chances of a habit; a quarter of the relations has each. Those above one half make greedy answers wrong."""


def habits(level: str) -> Habits:
    """The habits of a level, the same in every world."""
    rng = random.Random(11)
    word, kind = (dict(zip(rng.sample(NAMES, 16), LEVELS[level] * 4, strict=True)) for _ in range(2))
    return Habits(word, kind)


@dataclass(frozen=True)
class Line:
    """A step of a demonstrator and the passages that it found."""

    action: str
    content: str
    passages: tuple[Passage, ...] = field(default=())

    @property
    def text(self) -> str:
        """The step as a completion."""
        action = TRANSCRIPT.action(self.action)
        return action.head + action.tail(self.content)


def demonstrate(world: FactWorld, question: Question, habits: Habits, rng: random.Random) -> list[Line]:
    """The demonstrator's episode. It knows the way and the words, and errs by habit."""
    person, asked, named = parts_of(question.question)
    lines: list[Line] = []
    hop, form = 0, 0
    while hop < len(asked) and len(lines) < 2 * MOST_SEARCHES:
        relation = asked[hop]
        said = MISTAKEN[relation] if rng.random() < habits.word[relation] else relation
        word = RELATIONS[said][form]
        passages = world.passages(person, word)
        lines.append(Line("query", f"{person} {word}", passages))
        kind = MISREAD[said] if rng.random() < habits.kind[said] else KIND_OF[said]
        title = f"{person} {word} {kind}"
        object_ = next((passage.text for passage in passages if passage.title == title), NOTHING)
        lines.append(Line("evidence", f"{title} {object_}"))
        if object_ == NOTHING:
            form = 1 - form
        else:
            person, hop, form = object_, hop + 1, 0
        if rng.random() < habits.stop:
            break
    answer = person
    if named:
        sure = hop == len(asked)
        answer = ("yes" if person == named else "no") if sure else rng.choice(("yes", "no"))
    return [*lines, Line("answer", answer)]


GUESSABLE = 0.15
"""The share of questions for yes or no."""


@dataclass(frozen=True)
class Recipe:
    """How a start is made. Questions have one hop in the first `single` of all steps, two at most until `double`: in
    short episodes a model learns to read, for there is little else to look at. `ends`: a step ends with `</s>`.
    """

    level: str = "middle"
    steps: int = 2000
    batch: int = 64
    rate: float = 2e-3
    single: float = 0.25
    double: float = 0.35
    seed: int = 0
    ends: bool = False


def demonstrations(
    world: FactWorld, level: str, hops: tuple[int, ...], count: int, rng: random.Random, ends: bool = False
) -> Iterator[LearntRow]:
    """Whole episodes; the policy's own words are learnt."""
    for question in world.questions(count, hops, GUESSABLE, "pretrain"):
        ids, spans = [BEGIN, *FACTS.encode(question.question)], []
        for line in demonstrate(world, question, habits(level), rng):
            step = [*FACTS.encode(line.text), *[END] * ends]
            spans.append((len(ids), len(ids) + len(step)))
            ids += step
            for passage in line.passages:
                ids += FACTS.encode(f"{passage.title} {passage.text}")
        yield LearntRow(ids, tuple(spans))


def token_logps(model: LlamaForCausalLM, rows: Sequence[LearntRow]) -> Tensor:
    """Log-probabilities of the learnt tokens."""
    batch = packed([(row,) for row in rows])
    hidden = model.model(input_ids=batch.ids[:, :-1], use_cache=False).last_hidden_state
    return -functional.cross_entropy(model.lm_head(hidden[batch.at]), batch.target, reduction="none")


def untrained() -> LlamaForCausalLM:
    """A Llama of two layers and some 190,000 weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(FACTS.words), hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS,
        num_attention_heads=TURNING, max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=True,
        bos_token_id=BEGIN, eos_token_id=END, pad_token_id=PAD,
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
        loss = -token_logps(model, rows).mean()
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
        rows = list(demonstrations(FactWorld(seed), recipe.level, hops, 16 * recipe.batch, rng, recipe.ends))
        rows.sort(key=lambda row: len(row.ids) + 4 * rng.random())
        groups = [rows[first : first + recipe.batch] for first in range(0, len(rows), recipe.batch)]
        rng.shuffle(groups)
        for group in groups:
            yield group
            done += 1


MORE = Recipe(steps=250, rate=1e-3, single=0.0, double=0.2, seed=1)
OTHERS = {level: replace(MORE, level=level) for level in ("weak", "strong")}
OTHERS["ended"] = replace(MORE, ends=True)
"""How the others are made of the middle start."""


def differences(begun: dict[str, Tensor], ended: dict[str, Tensor]) -> dict[str, Tensor]:
    """What `start_of` adds to the middle start: of every weight whole steps, -127 to 127, and a step's size."""
    kept = {}
    for name, before in begun.items():
        moved = ended[name].float() - before.float()
        step = moved.abs().max() / 127
        kept |= {name: (moved / step).round().to(torch.int8), f"{name}.step": step.reshape(1)}
    return kept


def main() -> None:
    from safetensors.torch import load_file
    from transformers import LlamaForCausalLM

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("levels", nargs="*", default=["middle", *OTHERS])
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.folder.mkdir(parents=True, exist_ok=True)
    for level in given.levels:
        if level == "middle":
            pretrained(Recipe()).half().save_pretrained(given.folder)
            continue
        folder = given.folder if (given.folder / "config.json").exists() else START
        begun = load_file(folder / "model.safetensors")
        model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False)
        ended = pretrained(OTHERS[level], model).state_dict()
        save_file(differences(begun, ended), given.folder / f"{level}.safetensors")


if __name__ == "__main__":
    main()
