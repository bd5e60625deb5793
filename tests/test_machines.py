"""Machines that are not like ours: without a GPU or with many, with bounds on memory."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

import indexes.commands.build
import indexes.commands.plan
from data_generation.config import GenerateConfig
from indexes.commands.plan import encoders
from indexes.config import IndexConfig
from steprag.agent.open import make_environment, open_agent, roomy
from steprag.agent.profiles import load_profile
from steprag.config.sections import EpisodeConfig, JudgeConfig, PolicyConfig
from steprag.console.terminal import guarded
from steprag.engines import policy_command
from steprag.engines.pretrained import asking_the_hub
from steprag.engines.threads import usable_memory
from steprag.errors import ConfigError, PolicyUnavailable
from steprag.net.bounded_http import BoundedClient
from tests.fakes import DictRetriever
from tests.training_parts import Capture

WIKIPEDIA = ["--config", "configs/index/wikipedia.yaml"]


@pytest.mark.parametrize(("options", "complaint"), [
    (WIKIPEDIA, "--device cuda:0: no GPU here of that kind; give --device cpu --dtype float32"),
    (["--device", "cuda"], "--device cuda: no GPU here of that kind; give --device cpu\n"),
    (["--device", "cpu,mps"], "--device mps: no GPU here"),
    (["--device", "gpu"], "--device 'gpu': give cpu, cuda, cuda:0,cuda:1 or auto"),
    (["--type", "gpu-cagra"], "gpu-cagra needs a GPU and faiss-gpu-cuvs"),
])  # fmt: skip
def test_a_gpu_that_is_not_here_is_told_before_the_corpus_is_read(
    options: list[str], complaint: str, tmp_path: Path, capsys: Capture
) -> None:
    argv = [*options, "--corpus", str(tmp_path / "not-there.jsonl"), "--out", str(tmp_path / "index")]
    assert guarded(indexes.commands.build.main, argv) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(("name", "proxy", "usable"), [
    ("HTTPS_PROXY", "http://user:word@proxy.example:3128", True),
    ("https_proxy", "proxy.example:3128", True),
    ("NO_PROXY", "::1,10.0.0.0/8,*.corp,,", True),
    ("ALL_PROXY", "socks://user:word@127.0.0.1:1080", False),
    ("HTTP_PROXY", "http://proxy.example:port", False),
    ("HTTPS_PROXY", "ftp://proxy.example:21", False),
])  # fmt: skip
def test_a_proxy_that_cannot_be_used_is_named_and_none_is_used_on_this_machine(
    name: str, proxy: str, usable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, proxy)
    BoundedClient("http://127.0.0.1:1/v1", seconds=1)
    if usable:
        BoundedClient("https://endpoint.example/v1", seconds=1)
        if name.lower() == "https_proxy":  # which Clash and others set beside one of SOCKS
            monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:7890")
            BoundedClient("https://endpoint.example/v1", seconds=1)
        return
    with pytest.raises(ConfigError, match=rf"\${name}: .* is no proxy that can be used here; give") as refused:
        BoundedClient("https://endpoint.example/v1", seconds=1)
    assert "word" not in str(refused.value)


@pytest.mark.parametrize("why", ["no address", "mute"])
def test_a_hub_that_does_not_answer_is_asked_once_and_named(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        port = mute.getsockname()[1]
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setattr("steprag.engines.pretrained.HUB_SECONDS", 0.1)
        if why == "no address":
            monkeypatch.setattr("socket.getaddrinfo", no_address)
        with pytest.raises(ConfigError) as refused, asking_the_hub("model", "give its folder"):
            assert huggingface_hub.constants.HF_HUB_OFFLINE, "the block is not to ask it"
            raise ValueError("It is not in the cache.")
        monkeypatch.setattr("huggingface_hub.utils.get_session", None)  # it is not asked at the next door
        with pytest.raises(ConfigError, match="does not answer"), asking_the_hub("data set", "give its files"):
            raise ValueError("It is not in the cache.")
    assert not huggingface_hub.constants.HF_HUB_OFFLINE
    assert f"model: http://127.0.0.1:{port} does not answer (" in str(refused.value)


def test_what_the_hubs_client_says_ends_with_a_whole_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    long = ("It is not in the cache.\nSet 'HF_HUB_OFFLINE=0' to ask for it. " * 6).strip()
    with pytest.raises(ConfigError) as refused, asking_the_hub("model", "give its folder"):
        raise ValueError(long)
    said = str(refused.value)
    assert said.startswith("model: It is not in the cache. Set 'HF_HUB_OFFLINE=0' to ask for it.")
    assert said.endswith((" cache. (give its folder)", " it. (give its folder)"))
    assert len(said) < 400


def no_address(*_: object) -> None:
    raise socket.gaierror(-2, "Name or service not known")


@pytest.mark.parametrize(("keys", "devices", "expected"), [
    ({}, "cpu", (1, 8)),
    ({"processes": 4}, "cpu", (4, 2)),
    ({"processes": 4}, "cpu,cpu,cpu", (8, 1)),
    ({"ray": 32}, "cpu", (32, 1)),
    ({"processes": 2}, ",".join(f"cuda:{place}" for place in range(8)), (8, None)),
    ({"ray": 16}, "cuda", (16, None)),
])  # fmt: skip
def test_a_plan_counts_parallel_encoders(keys: dict[str, int], devices: str, expected: tuple[int, int | None]) -> None:
    assert encoders(IndexConfig.model_validate(keys), devices.split(","), cores=8) == expected


@pytest.mark.parametrize(("own", "files", "allowed"), [
    ("0::/a/b", {"a/memory.max": "1000", "a/b/memory.max": "max"}, 1000),
    ("5:memory:/docker/x", {"memory/memory.limit_in_bytes": "2000"}, 2000),
    ("5:memory:/", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
    ("5:cpu:/", {"memory/memory.limit_in_bytes": "2000"}, None),
])  # fmt: skip
def test_the_memory_of_a_small_container(own: str, files: dict[str, str], allowed: int | None, tmp_path: Path) -> None:
    for name, text in [("proc/self/cgroup", own), *((f"sys/fs/cgroup/{key}", text) for key, text in files.items())]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert usable_memory(tmp_path) == (allowed or usable_memory(tmp_path / "no-linux"))


VLLM: dict[str, Any] = {"engine": "vllm", "model": "a/policy"}
JUDGE: dict[str, Any] = {"engine": "vllm", "model": "a/judge"}


@pytest.mark.parametrize(("policy", "judge", "same"), [
    ({}, {}, True),
    ({"devices": "0"}, {"devices": "0"}, True),
    ({"devices": "0,1", "engine_args": {"tensor-parallel-size": 2}}, {"devices": "2"}, False),
    ({"engine_args": {"gpu-memory-utilization": 0.6}}, {"engine_args": {"gpu_memory_utilization": 0.3}}, False),
    ({}, {"base_url": "http://127.0.0.1:1/v1"}, False),
])  # fmt: skip
def test_two_engines_do_not_take_the_same_gpus(
    policy: dict[str, Any], judge: dict[str, Any], same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are told apart before either is started; here none can be, for the program is a stand-in."""
    (tmp_path / "vllm").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "vllm").chmod(0o755)
    monkeypatch.setenv("STEPRAG_VLLM", str(tmp_path / "vllm"))
    config = GenerateConfig(policy=PolicyConfig(**VLLM, **policy))

    async def opening() -> None:
        async with open_agent(config, DictRetriever(), judge=JudgeConfig(**JUDGE, **judge)):
            pass

    told = "policy and judge would each start a vLLM on the same GPUs" if same else "the engine ended with status 3"
    with pytest.raises(ConfigError if same else PolicyUnavailable, match=told):
        asyncio.run(opening())


def test_a_vllm_has_room_for_the_longest_episode() -> None:
    environment = make_environment(load_profile("transcript", 2), DictRetriever(), EpisodeConfig())
    roomier = roomy(PolicyConfig(**VLLM, max_tokens=256), environment).context
    assert roomier > 3000
    assert roomier % 1024 == 0
    assert roomy(PolicyConfig(**VLLM, context=2048), environment).context == 2048
    assert roomy(PolicyConfig(), environment).context == 2048


@pytest.mark.parametrize("name", ["trust-remote-code", "host", "served-model-name", "load-format"])
def test_flags_that_open_a_door_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is no flag that may be set here; known: block-size"):
        PolicyConfig(**VLLM, engine_args={name: True})
    with pytest.raises(ValueError, match="engine_args are for a vllm that is started here"):
        PolicyConfig(engine="vllm", base_url="http://127.0.0.1:1/v1", engine_args={"seed": 1})


@pytest.mark.parametrize(("number", "remedy"), [
    (errno.ENOSPC, "make room and run the same command again"),
    (errno.EROFS, "give a place that may be written"),
    (errno.EACCES, "give a place that may be written"),
])  # fmt: skip
def test_a_place_that_takes_no_files_is_one_line(number: int, remedy: str, capsys: Capture) -> None:
    def command(argv: list[str]) -> int:
        raise OSError(number, os.strerror(number), "/there/file")

    assert guarded(command, []) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"steprag: /there/file: {os.strerror(number)}; ")
    assert remedy in said
    assert said.count("\n") == 1


def test_a_home_that_takes_no_files_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    for name in ("STEPRAG_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/dev/null")
    assert guarded(policy_command.main, ["weights"]) == 1
    assert "/dev/null/.cache" in capsys.readouterr().err
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    assert guarded(policy_command.main, ["weights"]) == 2
    assert "set STEPRAG_CACHE to a folder that may be written" in capsys.readouterr().err
