"""Usable pairs a model call, and how many of them are right: the presets side by side, with a policy of known skill.

    python benchmarks/pairs_per_call.py [--questions 100]

The scripted policy needs two facts. Its queries are good half of the time, evidence holds a fact after most good
queries, and an answer is right as often as the facts at hand allow; so the true worth of every step, the chance that it
leads to a right answer, can be computed. The judge of `reasonrag` sees that worth through noise. Pairs are built by the
same rules from all (margin 0.01, all sibling pairs, SPRE); "right": the preferred step's true worth is the greater one.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import sys
from dataclasses import dataclass
from functools import cache

from data_generation.config import GenerateConfig
from data_generation.expand import make_searcher
from data_generation.growth import root_only
from data_generation.search import grow
from preference.config import LabelConfig, PairsConfig
from preference.pairs import build_pairs
from preference.rewards import rewards
from steprag.agent.environment import Environment
from steprag.agent.grammars import TRANSCRIPT
from steprag.agent.judge import Judge
from steprag.agent.profiles import load_profile
from steprag.config import load_config
from steprag.tree import path_to
from steprag.types import Completion, Message, Node, Passage, Question, Sample, Tree, Usage

DEPTH = 7
ANSWERS = (0.15, 0.4, 0.85)  # chance to answer rather than ask, by facts at hand
RIGHT = (0.05, 0.2, 0.9)  # chance that an answer is right
GOOD, FACT = 0.5, {"good": 0.8, "bad": 0.05}
NOISE = 0.25


@dataclass
class Skilled:
    """Writes steps by the chances above. Contents carry a number, so that siblings differ as free text does."""

    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        rng = random.Random(seed)
        text = messages[-1]["content"]
        texts = tuple(Completion(step(text, allowed, rng), "stop") for _ in range(n))
        return Sample(texts, Usage(1, len(text) // 4, 40 * n, 0))


def step(text: str, allowed: tuple[str, ...], rng: random.Random) -> str:
    facts, number = min(2, text.count("<evidence> fact")), rng.randrange(10**6)
    if "evidence" in allowed:
        last = re.findall(r"<query> (\w+)", text)[-1]
        kind = "fact" if rng.random() < FACT[last] else "nothing"
        return f"Based on the query, the relevant evidence is <evidence> {kind} {number} </evidence>"
    if "query" not in allowed or rng.random() < ANSWERS[facts]:
        content = "gold" if rng.random() < RIGHT[facts] else f"wrong{number}"
        return f"Done. So the answer is <answer> {content} </answer>"
    kind = "good" if rng.random() < GOOD else "bad"
    return f"More. So the next query is <query> {kind} {number} </query>"


@cache
def worth(facts: int, taken: int) -> float:
    """The chance of a right answer where the policy decides next, after `taken` steps."""
    if DEPTH - taken < 3:
        return RIGHT[facts]
    asked = sum(share * after_query(kind, facts, taken + 1) for kind, share in (("good", GOOD), ("bad", 1 - GOOD)))
    return ANSWERS[facts] * RIGHT[facts] + (1 - ANSWERS[facts]) * asked


def after_query(kind: str, facts: int, taken: int) -> float:
    return FACT[kind] * worth(min(2, facts + 1), taken + 1) + (1 - FACT[kind]) * worth(facts, taken + 1)


def worth_of(contents: list[tuple[str, str]]) -> float:
    """The true worth after steps given as action and content."""
    facts = min(2, sum(action == "evidence" and content.startswith("fact") for action, content in contents))
    action, content = contents[-1]
    if action == "answer":
        return float(content == "gold")
    return after_query(content.split()[0], facts, len(contents)) if action == "query" else worth(facts, len(contents))


class NoisyJudge:
    """Scores the true worth, give or take `NOISE`."""

    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        steps = re.findall(r"<(query|evidence|answer)> (.*?) </", messages[-1]["content"])
        score = worth_of(steps) + random.Random(seed).gauss(0, NOISE)
        return Sample((Completion(str(round(100 * min(1, max(0, score)))), "stop"),), Usage(1, 300, 2, 0))


class Nothing:
    fingerprint = "nothing"

    async def ready(self) -> None:
        return None

    async def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
        return (Passage("0", "Thing", "A passage.", 1.0),)

    async def aclose(self) -> None:
        return None


async def searched(preset: str, number: int) -> Tree:
    config = load_config(GenerateConfig, None, {"search.preset": preset, "seed": 1})
    judge = Judge(NoisyJudge(), gold=False) if config.reward.judged else None
    searcher = make_searcher(Environment(load_profile("transcript"), Nothing(), 1, DEPTH), Skilled(), judge, config)
    question = Question(f"q{number}", f"Question {number}?", ("gold",))
    return await grow(root_only(question, searcher.environment), searcher)


def measured(preset: str, questions: int) -> dict[str, float]:
    trees = [asyncio.run(searched(preset, number)) for number in range(questions)]
    rules = PairsConfig(margin=0.01, errors=0, per_node=None)
    right, pairs = 0.0, 0
    for tree in trees:
        for pair in build_pairs(tree, "", rewards(tree, LabelConfig(alpha=0.9), TRANSCRIPT), rules):
            better, worse = (_worth(tree, tree.nodes[node or 0]) for node in (pair.chosen_node, pair.rejected_node))
            pairs += 1
            right += 1.0 if better > worse else 0.5 if better == worse else 0.0
    calls = sum(tree.usage.calls for tree in trees)
    tokens = sum(tree.usage.prompt_tokens + tree.usage.completion_tokens for tree in trees)
    return {
        "calls": calls,
        "pairs": pairs,
        "per_call": pairs / calls,
        "per_token": pairs / tokens,
        "right": right / max(1, pairs),
    }


def _worth(tree: Tree, node: Node) -> float:
    return worth_of([(n.action or "", n.content or "") for n in path_to(tree, node) if n.parent is not None])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=100, help="questions of each preset [100]")
    given = parser.parse_args()
    rows = {preset: measured(preset, given.questions) for preset in ("reasonrag", "default", "fast")}
    base = rows["reasonrag"]
    sys.stdout.write(
        f"{'preset':<12}{'calls':>9}{'pairs':>9}{'pairs/call':>12}{'times':>8}{'per token':>11}{'right':>8}\n"
    )
    for preset, row in rows.items():
        times, tokens = row["per_call"] / base["per_call"], row["per_token"] / base["per_token"]
        sys.stdout.write(
            f"{preset:<12}{row['calls']:>9,.0f}{row['pairs']:>9,.0f}{row['per_call']:>12.2f}{times:>7.1f}x"
            f"{tokens:>10.1f}x{row['right']:>8.1%}\n"
        )


if __name__ == "__main__":
    main()
