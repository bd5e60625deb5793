"""The questions of `scripted.py` as a taskset of verifiers and a task of inspect, played as Search-R1's loop does.

They import it from a work folder. Passages are found in this process. verifiers' loop runs in its own process too
(`Harness.launch` allows it), which costs it least.
"""

from importlib.util import find_spec
from pathlib import Path

from scripted import PROMPT, question, searched

NUMBERS = range(len(Path("q.jsonl").read_text().splitlines()))

if find_spec("inspect_ai"):
    from inspect_ai import Task, task
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ChatMessageUser
    from inspect_ai.scorer import includes
    from inspect_ai.solver import solver
else:
    import httpx
    import verifiers.v1 as vf
    from openai import AsyncOpenAI
    from verifiers.v1.runtimes import ProgramResult

    task = solver = lambda function: function
    connections = httpx.AsyncClient(limits=httpx.Limits(max_connections=1000), timeout=60)

    class GadgetTask(vf.Task[vf.TaskData]):
        @vf.reward(weight=1.0)
        async def right(self, trace: vf.Trace) -> float:
            return float(f" Town{self.data.name} " in (trace.last_reply or ""))

    class Gadgets(vf.Taskset[GadgetTask, vf.TasksetConfig]):
        def load(self) -> list[GadgetTask]:
            rows = [vf.TaskData(prompt=PROMPT + question(number), name=str(number)) for number in NUMBERS]
            return [GadgetTask(row, self.config.task) for row in rows]

    class GadgetLoop(vf.Harness[vf.HarnessConfig]):
        EXECUTES_CODE = NEEDS_CONTAINER = False

        async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data) -> ProgramResult:  # noqa: ANN001
            model, talk = AsyncOpenAI(base_url=endpoint, api_key=secret, http_client=connections), []
            said = data.prompt
            while said:
                talk.append({"role": "user", "content": said})
                reply = await model.chat.completions.create(model="double", messages=talk, temperature=0)
                talk.append({"role": "assistant", "content": reply.choices[0].message.content})
                said = searched(talk[-1]["content"])
            return ProgramResult(0, "", "")

    __all__ = ["GadgetLoop", "Gadgets"]


@solver
def searching() -> object:
    async def solve(state, generate):  # noqa: ANN001, ANN202
        state = await generate(state, temperature=0)
        while said := searched(state.output.completion):
            state.messages.append(ChatMessageUser(content=said))
            state = await generate(state, temperature=0)
        return state

    return solve


@task
def gadgets() -> object:
    rows = [Sample(input=PROMPT + question(number), target=f" Town{number} ", id=number) for number in NUMBERS]
    return Task(dataset=rows, solver=searching(), scorer=includes())
