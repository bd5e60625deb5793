"""How llama.cpp's threads should wait: the same requests under several OpenMP settings, idle and beside a busy process.

    python benchmarks/engine_waiting.py [requests]

Compare within one run only. The engine is the embedded one; prompts are Atlas questions with a passage-sized tail.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

from steprag import atlas
from steprag.agent.grammars import TRANSCRIPT
from steprag.errors import StepragError
from steprag.inputs import read_passages, read_questions
from steprag.policy.client import open_policy
from steprag.sections import PolicyConfig
from steprag.types import Message, Usage

SETTINGS = {
    "sleep at once": {"OMP_WAIT_POLICY": "passive"},
    "spin": {"OMP_WAIT_POLICY": "active"},
    "spin briefly (default)": {"GOMP_SPINCOUNT": "1000"},
}
SECONDS = 120


def prompts(count: int) -> list[tuple[Message, ...]]:
    passages = [passage.text for passage in read_passages(atlas.path("corpus"))]
    return [
        (
            Message(role="system", content="Answer in small steps."),
            Message(role="user", content=question.question + "\n" + "\n".join(passages[3 * i : 3 * i + 3])),
        )
        for i, question in enumerate(read_questions(atlas.path("train"))[:count])
    ]


async def ask(count: int) -> tuple[float, Usage]:
    config = PolicyConfig(temperature=0, max_tokens=48)
    async with open_policy(config, TRANSCRIPT) as policy:
        start = time.perf_counter()
        samples = await asyncio.wait_for(
            asyncio.gather(*(policy.sample(prompt, ("query", "answer"), n=1, seed=0) for prompt in prompts(count))),
            SECONDS,
        )
    return time.perf_counter() - start, sum((sample.usage for sample in samples), Usage())


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 24
    for busy in (False, True):
        for name, setting in SETTINGS.items():
            for key in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
                os.environ.pop(key, None)
            if "GOMP_SPINCOUNT" not in setting:
                os.environ["GOMP_SPINCOUNT"] = "0" if setting["OMP_WAIT_POLICY"] == "passive" else "infinite"
            os.environ.update(setting)
            burner = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
            try:
                seconds, usage = asyncio.run(ask(count))
                fresh = usage.prompt_tokens - usage.cached_tokens
                words = f"{seconds:6.1f} s, {(fresh + usage.completion_tokens) / seconds:5.0f} tokens a second"
            except (TimeoutError, StepragError) as error:
                words = f"over {SECONDS} s ({type(error).__name__})"
            finally:
                if burner:
                    burner.kill()
            sys.stdout.write(f"{'busy' if busy else 'idle'}  {name:<24}{words}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
