"""GRPO's episodes by an engine: what is asked, learnt and refused; and vLLM itself where it is installed."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from steprag.console.terminal import guarded
from steprag.engines.launch import vllm_program
from steprag.engines.models import resolve_model
from steprag.errors import ConfigError
from steprag.records.json_text import decoded
from steprag.records.jsonl import write_records
from tests.fakes import Replying, descendants, listening, wait_for
from tests.grpo_parts import ASKED
from tests.training_parts import Capture, lines
from training.config import GrpoSection, TrainConfig
from training.model import load_policy
from training.play.engine import Engine, opened_engine
from training.play.sampling import SampledStep
from training.train import main

Fault = Callable[[int, dict[str, Any]], Any]
"""The number of an answer and the answer to what is sent; a whole number is a status."""


class FakeEngine:
    """A vLLM by transformers: it loads adapters and samples one prompt at a time, with the log-probability of each id.

    `base`: the weights it serves. `asked` and `loaded`: requests and adapters, in order.
    """

    def __init__(self, base: Path, fault: Fault = lambda number, answer: answer) -> None:
        from transformers import AutoModelForCausalLM

        self.model: Any = AutoModelForCausalLM.from_pretrained(base)
        self._policy: Any = None
        self._fault, self._lock = fault, threading.Lock()
        self.asked: list[dict[str, Any]] = []
        self.loaded: list[str] = []
        self.there: set[str] = set()

    def load(self, asked: dict[str, Any]) -> Any:
        from peft import PeftModel

        name, path = asked["lora_name"], asked["lora_path"]
        if name in self.loaded:
            return 400
        if self._policy is None:
            self._policy = PeftModel.from_pretrained(self.model, path, adapter_name=name)
        else:
            self._policy.load_adapter(path, adapter_name=name)
        self.loaded.append(name)
        self.there.add(name)
        return b"Success"

    def unload(self, asked: dict[str, Any]) -> Any:
        self.there.remove(asked["lora_name"])
        return b"Success"

    def complete(self, asked: dict[str, Any]) -> Any:
        import torch

        self.asked.append(asked)
        if asked["model"] not in self.there:
            return 404
        self._policy.set_adapter(asked["model"])
        draw, ids, logps = torch.Generator().manual_seed(asked["seed"]), [], []
        while len(ids) < asked["max_tokens"] and not (ids and ids[-1] in asked["stop_token_ids"]):
            with torch.no_grad():
                logits = self._policy(torch.tensor([asked["prompt"] + ids])).logits[0, -1]
            told = torch.log_softmax(logits / asked["temperature"], -1)
            ids.append(int(torch.multinomial(told.exp(), 1, generator=draw)))
            logps.append(float(told[ids[-1]]))
        finish = "stop" if ids[-1] in asked["stop_token_ids"] else "length"
        choice = {"token_ids": ids, "prompt_token_ids": asked["prompt"], "finish_reason": finish}
        return self._fault(len(self.asked), {**choice, "logprobs": {"token_logprobs": logps}})

    def answer(self, path: str, asked: dict[str, Any]) -> Any:
        """What is sent: bytes, a choice, or a status."""
        with self._lock:
            name = path.rpartition("/")[2]
            return {"completions": self.complete, "load_lora_adapter": self.load,
                    "unload_lora_adapter": self.unload}[name](asked)  # fmt: skip


@contextmanager
def at_url(engine: FakeEngine) -> Iterator[str]:
    class Handler(Replying):
        def do_POST(self) -> None:
            said = engine.answer(self.path, decoded(self.given()))
            whole = {"choices": [said]} if isinstance(said, dict) else said
            self.reply(b"down", said) if isinstance(said, int) else self.reply(whole)

    with listening(Handler) as url:
        yield f"{url}/v1"


def arguments(model: Path, folder: Path, index: Path, engine: str, *options: str) -> list[str]:
    write_records(folder / "questions.jsonl", [ASKED])
    fast = ["--stage", "grpo", "--threads", "1", "--warmup", "0", "--episode.top_k", "1", "--episode.depth", "5"]
    fast += ["--grpo.questions", "1", "--grpo.max_tokens", "40", "--grpo.episodes", "6", "--learning_rate", "0.005"]
    sources = ["--questions", str(folder / "questions.jsonl"), "--index", str(index), "--out", str(folder / "out")]
    return [*fast, "--grpo.temperature", "0.8", "--model", str(model), *sources, "--grpo.engine", engine, *options]


def test_an_engine_samples_ids_from_the_newest_adapter_alone(speaker: Path, word_index: Path, tmp_path: Path) -> None:
    engine = FakeEngine(speaker)
    with at_url(engine) as url:
        options = ["--max_steps", "3", "--grpo.beta", "0.01", "--grpo.mismatch", "1e-6"]
        assert guarded(main, arguments(speaker, tmp_path, word_index, url, *options)) == 0
    assert len(engine.loaded) == 3
    assert not engine.there, "each is unloaded once the next is there, the last one at the end"
    assert list(dict.fromkeys(one["model"] for one in engine.asked)) == engine.loaded
    assert all(one["top_p"] == 1 and one["top_k"] == -1 and one["temperature"] == 0.8 for one in engine.asked)
    assert len({one["seed"] for one in engine.asked}) > 6
    metrics = lines(tmp_path / "out/metrics.jsonl")
    assert all(row["sampling/ratio_mean"] == pytest.approx(1, abs=1e-3) for row in metrics)
    assert [row["groups_failed"] for row in metrics] == [0, 0, 0]
    assert not (tmp_path / "out/checkpoints").exists()


BROKEN: list[Callable[[dict[str, Any]], Any]] = [
    lambda said: {**said, "token_ids": said["token_ids"][:-1]},
    lambda said: {key: value for key, value in said.items() if key != "token_ids"},
    lambda said: {**said, "finish_reason": "abort"},
    lambda said: {**said, "finish_reason": "length"},
    lambda said: {**said, "logprobs": {"token_logprobs": [None, *said["logprobs"]["token_logprobs"][1:]]}},
    lambda said: {**said, "logprobs": {"token_logprobs": [float("nan")] * len(said["token_ids"])}},
    lambda said: {**said, "logprobs": {"token_logprobs": [-9999.0] * len(said["token_ids"])}},
    lambda said: {**said, "token_ids": [10**6] * len(said["token_ids"])},
    lambda said: {**said, "prompt_token_ids": [1]},
    lambda said: 400,
]


def test_what_cannot_be_learnt_from_costs_its_group(
    speaker: Path, word_index: Path, tmp_path: Path, capsys: Capture
) -> None:
    """One fault in every second step, so that no run ends; a passing 503 is asked again and costs nothing."""
    faults = iter(BROKEN)
    spoilt: list[str] = []

    def fault(number: int, said: dict[str, Any]) -> Any:
        name = engine.asked[-1]["model"]
        step = int(name.rpartition("-")[2])
        if step % 2 == 0 or name in spoilt:
            return said if number != 2 else 503
        spoilt.append(name)
        return next(faults)(said)

    engine = FakeEngine(speaker, fault)
    with at_url(engine) as url:
        steps = ["--max_steps", str(2 * len(BROKEN))]
        assert guarded(main, arguments(speaker, tmp_path, word_index, url, *steps)) == 0
    failed = [row["groups_failed"] for row in lines(tmp_path / "out/metrics.jsonl")]
    assert failed == [0, 1] * len(BROKEN)
    assert capsys.readouterr().err.count("are dropped: http://127.0.0.1") == len(BROKEN)


def test_an_engine_of_another_base_or_none_ends_the_run(
    speaker: Path, word_index: Path, tmp_path: Path, capsys: Capture
) -> None:
    import torch

    other = FakeEngine(speaker)
    with torch.no_grad():
        other.model.model.norm.weight.mul_(0.7)
    with at_url(other) as url:
        assert guarded(main, arguments(speaker, tmp_path, word_index, url, "--max_steps", "2")) == 1
    said = capsys.readouterr().err
    assert "step 1: the engine does not sample from the weights in training (ratio_mean " in said
    assert "grpo.mismatch allows kl 0.02" in said
    assert guarded(main, arguments(speaker, tmp_path / "out", word_index, url, "--max_steps", "2")) == 2
    assert f"the engine at {url.removesuffix('/v1')} is gone" in capsys.readouterr().err


REFUSED = [
    (["--finetuning", "full"], "an engine is sent the adapter alone; set finetuning lora"),
    (["--quantization", "int8"], "an engine's base is whole"),
    (["--grpo.engine_args", "{top-p: 0.9}"], "grpo.engine_args: with top_p samples would be of another distribution"),
    (["--grpo.engine_args", "{logprobs_mode: raw_logprobs}"], "with logprobs_mode samples"),
    (["--grpo.engine_args", "{trust-remote-code: true}"], "'trust_remote_code' is no flag that may be set here"),
    (
        ["--grpo.engine", "http://127.0.0.1:9", "--grpo.engine_args", "{seed: 1}"],
        "only a vllm that is started here takes them",
    ),
    (["--processes", "2", "--grpo.questions", "2"], "several processes share one engine"),
    (["--grpo.engine", "sglang"], "grpo.engine"),
    (["--grpo.temperature", "0.009"], "vLLM samples at 0.01 where less is asked for"),
]


@pytest.mark.parametrize(("options", "said"), REFUSED)
def test_what_an_engine_cannot_do_right_is_refused(
    options: list[str], said: str, speaker: Path, word_index: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert guarded(main, arguments(speaker, tmp_path, word_index, "vllm", *options)) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.fixture
def vllm() -> None:
    """The engine itself, where `scripts/setup_vllm.sh` has been run."""
    try:
        vllm_program()
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.usefixtures("vllm")
def test_greedy_ids_of_vllm_are_those_of_transformers(speaker: Path, tmp_path: Path) -> None:
    """Under an adapter, for prompts of unequal length in one batch."""
    import torch

    config = TrainConfig(stage="grpo", model=str(speaker), grpo=GrpoSection(engine="vllm", max_tokens=24))
    greedy = config.model_copy(update={"grpo": config.grpo.model_copy(update={"temperature": 0.0})})
    policy = load_policy(resolve_model(str(speaker)), config).eval()
    torch.manual_seed(1)
    for name, weight in policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.5)
    size, end = policy.get_input_embeddings().num_embeddings, policy.config.eos_token_id
    prompts = [torch.randint(4, size, (3 + 5 * n,)).tolist() for n in range(12)]

    async def ask(engine: Engine) -> list[SampledStep]:
        await engine.load(partial(policy.save_pretrained, save_embedding_layers=False), 0)
        return await asyncio.gather(*(engine.sample(n, prompt, n) for n, prompt in enumerate(prompts)))

    with asyncio.Runner() as runner, opened_engine(greedy, runner, tmp_path, [end], size) as engine:
        assert engine
        said = runner.run(ask(engine))
    how = {"do_sample": False, "max_new_tokens": 24, "eos_token_id": end, "pad_token_id": 0}
    made = [policy.generate(input_ids=torch.tensor([one]), **how)[0, len(one) :].tolist() for one in prompts]
    assert [one.completion for one in said] == made


@pytest.mark.slow
@pytest.mark.usefixtures("vllm")
def test_a_killed_vllm_is_started_again_and_no_episode_is_played_twice(
    speaker: Path, word_index: Path, tmp_path: Path, capsys: Capture
) -> None:
    def kill() -> None:
        wait_for(
            lambda: (tmp_path / "out/metrics.jsonl").is_file() and len(lines(tmp_path / "out/metrics.jsonl")) > 3, 400
        )
        for pid in descendants(os.getpid()):
            if "vllm" in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    options = ["--max_steps", "30", "--grpo.beta", "0.01", "--grpo.mismatch", "1e-6"]
    assert guarded(main, arguments(speaker, tmp_path, word_index, "vllm", *options)) == 0
    thread.join()
    assert "vLLM has ended; it is started again" in capsys.readouterr().err
    assert [row["step"] for row in lines(tmp_path / "out/episodes.jsonl")] == [
        n for n in range(1, 31) for _ in range(6)
    ]
