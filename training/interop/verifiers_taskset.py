"""The agent's world for verifiers' eval and prime-rl: a taskset and its harness, which ask `steprag environment`.

It runs in verifiers' environment, without StepRAG. An episode is one trace: each step a branch with the prompt that the
policy saw, the reward what the steps add up to.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aiohttp
import verifiers.v1 as vf
from openai import AsyncOpenAI
from pydantic import PositiveInt

__all__ = ["StepragHarness", "StepragTaskset"]


class StepragTasks(vf.TasksetConfig):
    """Where the world listens, and how many of its questions are played, from the first."""

    base_url: str = "http://127.0.0.1:8500"
    questions: PositiveInt = 1


class StepragQuestion(vf.TaskData):
    """A question by its place (`idx`) in the world's file; the world tells its text."""

    base_url: str


class StepragTaskset(vf.Taskset[vf.Task[StepragQuestion], StepragTasks]):
    def load(self) -> Iterator[vf.Task[StepragQuestion]]:
        data = StepragQuestion(prompt="", base_url=self.config.base_url)
        return (vf.Task[StepragQuestion](data, self.config.task) for _ in range(self.config.questions))


class StepragHarness(vf.Harness[vf.HarnessConfig]):
    """Asks the model for each step, in this process. What the world refuses is the trace's error."""

    APPENDS_SYSTEM_PROMPT, EXECUTES_CODE, NEEDS_CONTAINER = True, False, False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: StepragQuestion
    ) -> vf.ProgramResult:
        async with (
            AsyncOpenAI(base_url=endpoint, api_key=secret, timeout=None) as model,
            aiohttp.ClientSession(data.base_url) as session,
            session.ws_connect("/ws") as world,
        ):
            seen, total = await told(world, "reset", seed=data.idx), 0.0
            while not seen["done"]:
                messages = seen["observation"]["messages"]
                reply = await model.chat.completions.create(model=ctx.model, messages=messages)
                seen = await told(world, "step", text=reply.choices[0].message.content or "")
                total += seen["reward"] or 0.0
                trace.record_reward("score", total)
            trace.info.update(question=seen["observation"]["question"], finish=seen["observation"]["finish"])
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


async def told(world: aiohttp.ClientWebSocketResponse, kind: str, **data: Any) -> dict[str, Any]:
    await world.send_json({"type": kind, "data": data})
    reply = await world.receive_json()
    if reply["type"] == "error":
        raise RuntimeError(f"steprag environment: {reply['data']['message']}")
    return reply["data"]
