"""Tokens a second of each engine, with the same prompts, one after the other in one run.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/engine_speed.py --engines llamacpp vllm

Prompts are Atlas questions with six passages; each gets one reply, constrained to a query or an answer, sampled, with a
seed. One completion a request: of several, no engine says exactly what it cached or generated (docs/engines.md).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from steprag import atlas
from steprag.agent.grammars import TRANSCRIPT
from steprag.config.sections import PolicyConfig
from steprag.engines.launch import ENGINES
from steprag.policy.open import open_policy
from steprag.policy.protocols import Policy
from steprag.records.inputs import read_passages, read_questions
from steprag.types import Message, Usage

PASSAGES = 6


def prompts(count: int) -> list[tuple[Message, ...]]:
    """Different from their first word on, so that none is served from another's cache."""
    passages = [passage.text for passage in read_passages(atlas.path("corpus"))]
    questions = read_questions(atlas.path("train"))[:count]
    return [
        (
            Message(role="system", content=f"{i}: {question.question} Answer in small steps."),
            Message(role="user", content="\n".join(passages[PASSAGES * i : PASSAGES * (i + 1)])),
        )
        for i, question in enumerate(questions)
    ]


async def seconds(policy: Policy, asked: list[tuple[Message, ...]]) -> tuple[float, Usage]:
    start = time.perf_counter()
    samples = await asyncio.gather(
        *(policy.sample(prompt, ("query", "answer"), n=1, seed=number) for number, prompt in enumerate(asked))
    )
    return time.perf_counter() - start, sum((sample.usage for sample in samples), Usage())


async def measure(config: PolicyConfig, count: int) -> tuple[float, Usage]:
    asked = prompts(count + 2)
    async with open_policy(config, TRANSCRIPT) as policy:
        await seconds(policy, asked[count:])  # what an engine does for its first requests alone
        return await seconds(policy, asked[:count])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=["llamacpp"])
    parser.add_argument("--adapters", nargs="+", default=["none", "atlas-warmstart"])
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--concurrency", type=int, default=16)
    given = parser.parse_args()
    first = None
    for engine in given.engines:
        for adapter in given.adapters:
            config = PolicyConfig(
                engine=engine, adapter=None if adapter == "none" else adapter,
                temperature=1, max_tokens=96, concurrency=given.concurrency,
            )  # fmt: skip
            took, usage = asyncio.run(measure(config, given.requests))
            fresh = usage.prompt_tokens - usage.cached_tokens
            rate = (fresh + usage.completion_tokens) / took
            first = first or rate
            sys.stdout.write(
                f"{engine:12} {adapter:16} {rate:5.0f} tokens a second, {rate / first:.2f} times the first "
                f"({fresh:,} prompt and {usage.completion_tokens:,} generated in {took:.1f} s)\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
