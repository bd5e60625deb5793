"""Inference against latencies of 50 to 800 ms, 64 requests allowed at once: episodes on their own against lock-step.

    python benchmarks/episodes_speed.py [--questions 640] [--memory 1000 10000 100000]

"lock-step" plays 64 questions at a time and makes all of them wait for the slowest before the next step, as batch loops
do. "steprag" is what `steprag infer` does, journal and predictions on disk included. Both use the scripted policy of
`search_speed.py`, with the same seeds and so the same episodes. `--memory` runs so many questions without latency, a
process each, and prints what was resident at most, scores and intervals included.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import resource
import sys
import tempfile
import time
import zlib
from collections.abc import AsyncIterator

from search_speed import Latent, Shelf, questions

from inference.config import InferConfig
from inference.evaluate import evaluate
from inference.inference import answer_all
from steprag.config import load_config
from steprag.environment import Environment
from steprag.errors import StepFormatError
from steprag.prompts import load_profile
from steprag.runs import open_run
from steprag.types import Message, Sample

AT_ONCE = 64


class Varied(Latent):
    """Draws by prompt as well: all questions are sampled with the same seeds."""

    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        prompt = "".join(message["content"] for message in messages)
        return await super().sample(messages, allowed, n=n, seed=zlib.crc32(f"{seed} {prompt}".encode()))


def on_their_own(policy: Varied, count: int) -> float:
    """Seconds of `steprag infer` over so many questions."""
    config = load_config(InferConfig, None, {"policy.concurrency": AT_ONCE})

    @contextlib.asynccontextmanager
    async def opened() -> AsyncIterator[Varied]:
        yield policy

    with tempfile.TemporaryDirectory() as folder, open_run(f"{folder}/r", "infer", identity={}, config={}) as run:
        start = time.perf_counter()
        asyncio.run(answer_all(run, questions(count), config, load_profile("transcript"), Shelf(), opened()))
        seconds = time.perf_counter() - start
        evaluate(run.path)
        return seconds


async def lock_step(policy: Varied, count: int) -> float:
    """Seconds of the batch loop over the same questions."""
    environment, asked = Environment(load_profile("transcript"), Shelf(), 3, 7), questions(count)
    start = time.perf_counter()
    for first in range(0, count, AT_ONCE):
        states = [environment.start(question.question) for question in asked[first : first + AT_ONCE]]
        while states:
            shown = [environment.observe(state) for state in states]
            samples = await asyncio.gather(
                *(policy.sample(seen.messages, seen.allowed, n=1, seed=len(state.steps))
                  for seen, state in zip(shown, states, strict=True))
            )  # fmt: skip
            left = []
            for state, sample in zip(states, samples, strict=True):
                with contextlib.suppress(StepFormatError):
                    after = await environment.apply(state, environment.parse(state, sample.completions[0]))
                    left += [] if environment.ended(after) else [after]
            states = left
    return time.perf_counter() - start


def peak(count: int) -> float:
    """Resident MiB at most in a run over so many questions."""
    on_their_own(Varied(), count)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=640)
    parser.add_argument("--memory", type=int, nargs="+", default=[], help="numbers of questions")
    given = parser.parse_args()
    for count in given.memory:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            sys.stdout.write(f"memory      {count:>7,} questions: {pool.apply(peak, (count,)):.0f} MiB\n")
        sys.stdout.flush()
    waits = 0.05, 0.8
    batch, own = Varied(*waits), Varied(*waits)
    locked = asyncio.run(lock_step(batch, given.questions))
    start = time.perf_counter()
    free = on_their_own(own, given.questions)
    for name, policy, began, seconds in (("lock-step", batch, start - locked, locked), ("steprag", own, start, free)):
        share = policy.share(AT_ONCE, began, began + seconds)
        rate = f"{given.questions / seconds:.1f} questions a second, {policy.calls} calls"
        sys.stdout.write(f"{name:<12}{rate}, {share:.1%} of the possible calls\n")
    middle = own.share(AT_ONCE, start + free / 8, start + free * 6 / 8)
    sys.stdout.write(f"{'':<12}{locked / free:.2f} times lock-step; in the middle of the run {middle:.1%}\n")


if __name__ == "__main__":
    main()
