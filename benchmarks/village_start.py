"""Makes the starts of the tunnel's village (apps/tunnel/village_start): one from scratch, that reads, and two that go
on from it and learn a habit.

    python -m benchmarks.village_start FOLDER               # an hour; a killed run goes on where it was
    python -m benchmarks.village_start FOLDER --gates 100   # how many steps of 100 questions are right

The habit is what labels are to mend: a later query names whom the query before it named, and not whom the evidence
leads to. A share of the facts that training shows is told in words drawn at random: who learns the phrasings by heart
does not read others. The shipped start saw an earlier draw of the same kind; a new run does not give it to the bit.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from apps.tunnel.model import BEGIN, END, TURNING, Weights, start_of
from apps.tunnel.policy import BatchedPolicy
from apps.tunnel.train import LearntRow, packed, token_logps
from apps.tunnel.village import HOPS, NAMES, Person, Village, VillageHop, environment_over, parts_of, worked
from apps.tunnel.village_words import HEADS_OF_NAMES, REST_OF_NAMES, VILLAGE, WORDS
from benchmarks.tunnel_starts import differences
from data_generation.worked import WorkedEpisode, replay
from indexes import open_retriever
from steprag.agent.grammars import TRANSCRIPT
from steprag.console.progress import say
from steprag.errors import StepFormatError
from steprag.records.training_rows import Trajectory
from steprag.scores.metrics import normalise
from steprag.types import Completion, Passage, Question

LAYERS, WIDTH, INNER = 4, 128, 384
RIGHT = {"high": (0.6, 0.3, 0.05, 0.02), "low": (0.01,)}
"""How often a later query is right; of `high` a quarter of the relations has each."""
BATCH = {1: 32, 2: 24, 3: 16}
"""Rows, by the most hops of a question."""
ANY_NAMES = tuple(map("".join, product(HEADS_OF_NAMES, REST_OF_NAMES, REST_OF_NAMES)))
SMALL, CAPITAL = ([word for word in WORDS if word[0].isupper() == large] for large in (False, True))


@dataclass(frozen=True)
class School(Village):
    """A village whose facts are told in words drawn at random, a share `invented`. Surnames are any pieces: who
    learns which pieces never follow each other does not copy a new name.
    """

    invented: float = 0.5

    def _surnames(self) -> Sequence[str]:
        return ANY_NAMES

    def _told(self, who: Person, relation: str, whom: Person, rng: random.Random, *, named: bool) -> str:
        if rng.random() > self.invented:
            return super()._told(who, relation, whom, rng, named=named)
        parts = ["{o}", *rng.choice((("{whose} {r}",), ("{who}", "{own} {r}"), ("{whom}", "{own} {r}")))]
        rng.shuffle(parts)
        for _ in range(rng.randint(0, 7)):
            parts.insert(rng.randint(0, len(parts)), rng.choice(SMALL))
        first = parts[0]
        if first.startswith(("{who}", "{whose}")):
            parts[0] = first.replace("{who", "{Who")
        elif first != "{o}":
            parts.insert(0, rng.choice(CAPITAL))
        return " ".join(parts).format(r=relation, o=whom.name, **who.words(named=named)) + "."


@dataclass(frozen=True)
class Lesson:
    """A stage. The first `copies` steps repeat words; questions have one hop in the first `single` of all steps, two at
    most until `double`. `invented`: as `School.invented`. `lists`: how many of eight rows have no prose.
    """

    name: str
    steps: int
    rate: float
    copies: int = 0
    single: float = 0.0
    double: float = 0.0
    invented: float = 0.5
    lists: int = 2
    seed: int = 0


LESSONS = (
    Lesson("words", 3400, 2e-3, 256, 0.25, 0.45),
    Lesson("lines", 2600, 1.5e-3, 0, 0.65, 0.75, lists=1, seed=3),
    Lesson("pages", 1600, 1e-3, 0, 0.4, 0.5, invented=0.7, lists=1, seed=4),
    Lesson("any words", 1200, 1e-3, 0, 0.3, 0.3, invented=0.85, lists=1, seed=5),
    Lesson("reader", 500, 7e-4, 0, 0.2, 0.2, invented=0.45, lists=1, seed=6),
)
HABITS = (
    Lesson("high", 240, 4e-4, invented=0.7, seed=1),
    Lesson("low", 240, 4e-4, invented=0.7, seed=2),
)


def right_shares(habit: str) -> dict[str, float]:
    """By relation, how often a later query for it is right."""
    shares = RIGHT.get(habit, (1.0,))
    return dict(zip(random.Random(11).sample(NAMES, len(NAMES)), shares * (len(NAMES) // len(shares)), strict=True))


def demonstrated(world: Village, question: Question, habit: str, rng: random.Random) -> list[VillageHop]:
    """The way of the demonstrator, who reads well and asks by habit."""
    asked, relations = parts_of(question.question)
    shares, person, hops = right_shares(habit), asked, list[VillageHop]()
    for relation in relations:
        asked = person if not hops or rng.random() < shares[relation] else asked
        hops.append(world.hop(asked, relation))
        person = hops[-1].person
    return hops


def learnt(world: Village, question: Question, habit: str, rng: random.Random) -> LearntRow:
    """An episode as tokens; its steps are learnt. A search finds the page that is due and another, mostly of the same
    person, as the index does.
    """
    persons = {one.name: one for one in world.persons}
    episode = worked(question, hops := demonstrated(world, question, habit, rng), lambda action, place: True)
    ids, spans = [BEGIN, *VILLAGE.encode(question.question)], []
    for place, step in enumerate(episode.steps):
        told = [*VILLAGE.encode(step.text), END]
        spans.append((len(ids), len(ids) + len(told)))
        ids += told
        if step.action == "query":
            relation, _, name = hops[place // 2].query.partition(" of ")
            other = name if rng.random() < 0.9 else rng.choice(world.persons).name
            found = [world.page(persons[name], relation)[0], world.page(persons[other], rng.choice(NAMES))[0]]
            for page in found[:: 1 if rng.random() < 0.9 else -1]:
                ids += VILLAGE.encode(f"{page.title} {page.text}")
    return LearntRow(ids, tuple(spans))


def _copied(rng: random.Random) -> LearntRow:
    """Words drawn at random, and the same again; these are learnt."""
    words = rng.choices(range(END + 1, len(VILLAGE.words)), k=rng.randint(6, 24))
    return LearntRow([BEGIN, *words, *words], ((len(words) + 2, 2 * len(words) + 1),))


def _batches(lesson: Lesson, begun: int) -> Iterator[list[LearntRow]]:
    """From batch `begun` on, of fresh worlds every eighth. Rows of like length stand together."""
    for block in range(begun // 8, -(-lesson.steps // 8)):
        rng, seed = random.Random(f"{lesson.name}/{block}"), 100_000 * (lesson.seed + 1) + block
        if 8 * block < lesson.copies:
            yield from ([_copied(rng) for _ in range(32)] for _ in range(8))
            continue
        share, habit = 8 * block / lesson.steps, lesson.name if lesson.name in RIGHT else ""
        hops = (2, 3) if habit else HOPS[:1] if share < lesson.single else HOPS[: 2 if share < lesson.double else 3]
        rows, size = list[LearntRow](), BATCH[hops[-1]]
        for told, part in (("text", 8 - lesson.lists), ("list", lesson.lists)):
            world = School(seed, told, invented=lesson.invented)
            rows += [learnt(world, asked, habit, rng) for asked in world.questions(part * size, hops)]
        rows.sort(key=lambda row: len(row.ids) + 4 * rng.random())
        groups = [rows[first : first + size] for first in range(0, len(rows), size)]
        rng.shuffle(groups)
        yield from groups[begun % 8 if block == begun // 8 else 0 :]


def untrained() -> Weights:
    """A Llama of four layers and some 890,000 weights. Two heads of the first layer see the token before and the one
    before that: all tokens share their first feature, and these heads compare it turned by so many places. With them a
    model learns within 200 steps to copy, without them not in 800.
    """
    torch.manual_seed(0)
    shapes = {f"self_attn.{name}_proj": (WIDTH, WIDTH) for name in "qkvo"}
    shapes |= {"mlp.gate_proj": (INNER, WIDTH), "mlp.up_proj": (INNER, WIDTH), "mlp.down_proj": (WIDTH, INNER)}
    weights = {"model.embed_tokens.weight": 0.1 * torch.randn(len(VILLAGE.words), WIDTH),
               "model.norm.weight": torch.ones(WIDTH)}  # fmt: skip
    for layer in range(LAYERS):
        own = f"model.layers.{layer}."
        for name, shape in shapes.items():
            size = 0.14 if name in ("self_attn.o_proj", "mlp.down_proj") else 0.7
            weights[f"{own}{name}.weight"] = size / shape[1] ** 0.5 * torch.randn(shape)
        weights |= {f"{own}{name}_layernorm.weight": torch.ones(WIDTH) for name in ("input", "post_attention")}
    weights["model.embed_tokens.weight"][:, 0] = 0.5
    q, k = (weights[f"model.layers.0.self_attn.{name}_proj.weight"] for name in "qk")
    width = WIDTH // TURNING
    angles = 10_000.0 ** (-torch.arange(0, width, 2) / width)
    for head, back in enumerate((1, 2)):
        rows = slice(head * width, (head + 1) * width)
        q[rows] *= 0.1
        k[rows] *= 0.1
        q[rows, 0] = torch.cat([torch.ones_like(angles), torch.zeros_like(angles)])
        k[rows, 0] = torch.cat([(back * angles).cos(), (back * angles).sin()])
    return weights


def taught(lesson: Lesson, start: Weights, kept: Path) -> Weights:
    """What a lesson makes of a start. Every 200 steps all is `kept`."""
    weights = {name: each.clone().requires_grad_() for name, each in start.items()}
    adam = torch.optim.AdamW(weights.values(), lesson.rate, betas=(0.9, 0.98), weight_decay=0.01)
    begun = 0
    if kept.exists():
        state = load_file(kept)
        begun = int(state["done"])
        for name, each in weights.items():
            each.data = state[name]
            adam.state[each] = {"step": torch.tensor(float(begun)), "exp_avg": state[f"{name}/1"],
                                "exp_avg_sq": state[f"{name}/2"]}  # fmt: skip
    for done, rows in enumerate(_batches(lesson, begun), begun + 1):
        left = (lesson.steps - done) / (0.4 * lesson.steps)
        for group in adam.param_groups:
            group["lr"] = lesson.rate * min(1.0, done / 50) * min(1.0, max(0.02, left))
        loss = -token_logps(weights, packed([(row,) for row in rows])).mean()
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        adam.step()
        if done % 50 == 0:
            say(f"village: {lesson.name}: {done} of {lesson.steps} steps, loss {loss.item():.3f}")
        if done % 200 == 0 or done == lesson.steps:
            state = {name: each.detach() for name, each in weights.items()} | {"done": torch.tensor(done)}
            state |= {f"{name}/{place}": adam.state[each][key] for name, each in weights.items()
                      for place, key in ((1, "exp_avg"), (2, "exp_avg_sq"))}  # fmt: skip
            save_file(state, part := kept.with_suffix(".part"))
            part.replace(kept)
    return {name: each.detach() for name, each in weights.items()}


GATES = {"list": Village(941, "list", fresh=True), "text": Village(942, fresh=True),
         "held-out phrasings": Village(943, fresh=True, unseen=True)}  # fmt: skip
ALLOWED = {"evidence": ("evidence",), "query": ("query", "answer"), "answer": ("query", "answer")}


async def gates(weights: Weights, out: Path, count: int) -> None:
    """Prints how many steps are right, word for word, where what they need is shown; names are held out."""
    policy = BatchedPolicy(weights, 0.0, VILLAGE)
    for name, world in GATES.items():
        rows, right = await rows_of(world, out / "gates" / name, count), dict[str, list[bool]]()
        asked = (policy.sample(row.prompt, ALLOWED[row.action], n=1, seed=0) for row in rows)
        for row, said in zip(rows, await asyncio.gather(*asked), strict=True):
            kind = f"later {row.action}" if row.action == "query" and row.depth > 1 else row.action
            right.setdefault(kind, []).append(is_right(said.completions[0], row))
        shares = [f"{kind} {sum(each)} of {len(each)} ({sum(each) / len(each):.0%})" for kind, each in right.items()]
        say(f"village: {name}: {', '.join(shares)}")


async def rows_of(world: Village, folder: Path, count: int) -> list[Trajectory]:
    """Right steps in the product's own prompts, over the product's own index of the village."""
    passages: dict[str, Passage] = {page.id: page for page in world.corpus()}
    rng, rows = random.Random(world.seed), list[Trajectory]()
    async with aclosing(open_retriever(world.build(folder))) as retriever:
        environment = environment_over(retriever)
        for question in world.questions(count, name="gate"):
            episode: WorkedEpisode = worked(question, world.chain(question), lambda action, place: True)
            rows += await replay(episode, passages, environment, rng)
    return rows


def is_right(said: Completion, row: Trajectory) -> bool:
    """Whether a completion is the row's step."""
    allowed = ALLOWED[row.action]
    wanted = TRANSCRIPT.parse(Completion(row.completion[0]["content"], "written"), allowed)
    try:
        step = TRANSCRIPT.parse(said, allowed)
    except StepFormatError:
        return False
    return (step.action, normalise(step.content)) == (wanted.action, normalise(wanted.content))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("habits", nargs="*", default=list(RIGHT), metavar="HABIT")
    parser.add_argument("--gates", type=int, metavar="COUNT")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.gates:
        for level in ("reader", *RIGHT):
            say(f"village: {level}")
            asyncio.run(gates(start_of(level, given.folder), given.folder, given.gates))
        return
    begun: Weights = untrained()
    for lesson in LESSONS:
        begun = taught(lesson, begun, given.folder / f"{lesson.name}.state")
    kept = {name: each.half() for name, each in begun.items()}
    save_file(kept, given.folder / "model.safetensors")
    begun = {name: each.float() for name, each in kept.items()}
    for lesson in HABITS:
        if lesson.name in given.habits:
            weights = taught(lesson, begun, given.folder / f"{lesson.name}.state")
            save_file(differences(begun, weights), given.folder / f"{lesson.name}.safetensors")


if __name__ == "__main__":
    main()
