"""The agent's world for other people's trainers: rewards step by step, as OpenEnv environment, in a run of TRL's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from steprag.agent.environment import Environment
from steprag.agent.profiles import load_profile
from steprag.errors import ConfigError
from steprag.records.jsonl import write_records
from steprag.types import Question
from tests.fakes import DictRetriever, ScriptedPolicy, answer, evidence, in_turn, played, query
from tests.models import make_tokenizer, make_weights
from training.interop.stepwise import StepwiseEpisode, StepWorld, open_step_world
from training.play.rewards import Played, score

ASKED = Question("q", "Which currency?", ("lek",), {"supporting_ids": ["0", "3"]})
WEIGHTS = {"f1": 1.0, "format": 0.1, "recall": 0.5, "cost": -0.01}
KEPT = "Tirana is the capital of Albania."
FOUND = evidence(KEPT)
SCRIPTS = {
    "a right answer": [query("Tirana"), FOUND, answer("lek")],
    "two searches, a wrong answer": [query("Tirana"), FOUND, query("Albania"), FOUND, answer("euro")],
    "an answer at once": [answer("lek")],
    "words that are no step": [query("Tirana"), "I do not know."],
    "nothing": [""],
}


def world(**more: Any) -> StepWorld:
    environment = Environment(load_profile("transcript"), DictRetriever(), top_k=1, depth=7)
    return StepWorld({"q": ASKED}, environment, {**WEIGHTS, **more})


def ours(script: list[str]) -> float:
    """What stage grpo gives for these completions."""
    there = world()
    episode = played(there.environment, ScriptedPolicy(in_turn(*script)), ASKED.question)
    return score([Played(ASKED, episode, there.environment.profile.grammar, 0)], WEIGHTS).totals[0]


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_rewards_of_steps_add_up_to_stage_grpos(name: str) -> None:
    async def play() -> tuple[list[float], StepwiseEpisode]:
        playing = await StepwiseEpisode(world(), "q").begin()
        assert playing.seen == playing.world.environment.observe(playing.world.environment.start(ASKED.question))
        return [await playing.step(text) for text in SCRIPTS[name]], playing

    rewards, playing = asyncio.run(play())
    assert playing.seen is None
    assert sum(rewards) == pytest.approx(ours(SCRIPTS[name]))
    if name == "a right answer":
        assert rewards == pytest.approx([0.1 + 0.25 - 0.01, 0.0, 1.0])  # found half of the gold, at a search's cost


def test_what_cannot_be_played_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no question has the id 'r'"):
        StepwiseEpisode(world(), "r")

    async def beyond() -> None:
        playing = await StepwiseEpisode(world(), "q").begin()
        await playing.step("")
        await playing.step("")

    with pytest.raises(ConfigError, match="the episode is over"):
        asyncio.run(beyond())
    write_records(tmp_path / "q.jsonl", [ASKED])
    (tmp_path / "r.yaml").write_text("grpo: {rewards: {judge: 1.0}}")
    with pytest.raises(ConfigError, match="judge needs a judge or tokens"):
        open_step_world(str(tmp_path / "q.jsonl"), "http://127.0.0.1:9", str(tmp_path / "r.yaml"))


def test_a_client_of_openenv_plays_an_episode() -> None:
    """Where OpenEnv's package is installed: it is no requirement of the tests."""
    pytest.importorskip("openenv")
    from fastapi.testclient import TestClient
    from starlette.websockets import WebSocketDisconnect

    from training.interop.openenv_world import openenv_app

    with TestClient(openenv_app(world(), 4), base_url="http://127.0.0.1") as client:
        assert client.get("/schema", headers={"Origin": "http://evil.example"}).status_code == 403
        assert client.get("/schema").json()["action"]["required"] == ["text"]
        with (
            pytest.raises(WebSocketDisconnect),
            client.websocket_connect("ws://127.0.0.1/ws", headers={"Origin": "http://evil.example"}),
        ):
            pass
        with client.websocket_connect("ws://127.0.0.1/ws") as socket:

            def told(kind: str, **data: Any) -> dict[str, Any]:
                socket.send_json({"type": kind, "data": data})
                return socket.receive_json()["data"]

            first = told("reset", question="q")
            assert first["observation"]["allowed"] == ["query", "answer"]
            steps = [told("step", text=text) for text in SCRIPTS["a right answer"]]
    assert [step["done"] for step in steps] == [False, False, True]
    assert sum(step["reward"] for step in steps) == pytest.approx(ours(SCRIPTS["a right answer"]))


@pytest.mark.slow
def test_a_run_of_trls_own_trainer_rewards_as_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer, its loop of tools, its rewards and its step are TRL's; the completions are given."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    import json

    import trl
    from datasets import Dataset
    from transformers import AutoModelForCausalLM
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    from training.interop.trl_environment import trl_environment, trl_rows

    def called(name: str, content: str) -> str:
        return f"<tool_call>\n{json.dumps({'name': name, 'arguments': {'content': content}})}\n</tool_call>"

    said = [
        [
            called("query", "Tirana"),
            called("evidence", KEPT),
            called("answer", "lek"),
            "x",
        ],
        [called("query", "Albania"), called("evidence", "Prices."), called("answer", "euro"), "x"],
        [called("answer", "lek"), "x"],
        ["I do not know."],
    ]
    same = [
        [query("Tirana"), FOUND, answer("lek")],
        [query("Albania"), evidence("Prices."), answer("euro")],
        [answer("lek", "").strip()],
        [""],
    ]  # fmt: skip (a call of a tool says nothing before it)
    words = (Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja").read_text()
    tokenizer = make_tokenizer(tmp_path, [text for script in said for text in script], words)
    make_weights(tmp_path, len(tokenizer))

    class Scripted(GRPOTrainer):
        def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
            if len(prompt_ids) == len(said):
                self.left = [list(script) for script in said]
            texts = []
            for place, ids in enumerate(prompt_ids):
                shown = tokenizer.decode(ids)
                mine = (
                    place
                    if len(prompt_ids) == len(said)
                    else next(n for n, script in enumerate(said) if script[0] in shown and self.left[n])
                )
                texts.append(self.left[mine].pop(0))
            return [tokenizer.encode(text) + [tokenizer.eos_token_id] for text in texts], None

    arguments = {"num_generations": 4, "per_device_train_batch_size": 4, "max_steps": 1, "max_completion_length": 2000,
                 "report_to": "none", "use_cpu": True, "save_strategy": "no", "learning_rate": 0.1}  # fmt: skip
    trainer = Scripted(
        model=AutoModelForCausalLM.from_pretrained(tmp_path), processing_class=tokenizer,
        args=GRPOConfig(output_dir=str(tmp_path / "out"), **arguments),
        environment_factory=trl_environment(world()), train_dataset=Dataset.from_list(trl_rows(world())),
    )  # fmt: skip
    before = [weight.detach().clone() for weight in trainer.model.parameters()]
    trainer.train()
    told = list(trainer._logs["rewards"]["StepragEnvironment"])
    assert told == pytest.approx([ours(script) for script in same])
    assert any((one != other).any() for one, other in zip(before, trainer.model.parameters(), strict=True))
