"""`steprag ask`: one episode as a run would play it, and no key that would do nothing."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import pytest

from apps.chat.config import ChatConfig
from apps.commands import main
from inference.config import InferConfig, config_of
from steprag.agent.citations import headed
from steprag.config.load import StageConfig, add_options, parse_arguments
from steprag.engines.models import SHIPPED, shipped_adapters
from tests.fakes import QUESTION, WORLD, answer, chat_reply, evidence, one_search, query, serve
from tests.indexing import hybrid_index


@pytest.fixture(scope="module")
def sparse(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Options of an index that finds nothing for words that its corpus lacks."""
    folder = hybrid_index(tmp_path_factory.mktemp("hybrid"), WORLD, encoder)
    return "--index", str(folder), "--retriever.mode", "sparse"


def asked(url: str, *more: str, question: str = QUESTION) -> list[str]:
    return ["ask", question, "--base_url", url, "--model", "double", "--policy.engine", "openai", *more]


def test_a_query_that_finds_nothing_says_so_and_nothing_is_kept(
    sparse: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So does a question that is searched first."""
    monkeypatch.chdir(tmp_path)
    with serve(chat_reply(one_search("zzyzx", "None", "lek"))) as endpoint:
        for asked_so_far in (3, 6):
            assert main(asked(endpoint.url, *sparse)) == 0
            assert len(endpoint.requests) == asked_so_far
            lines = capsys.readouterr().out.splitlines()
            assert [line.split()[0] for line in lines if line] == [
                "query", "nothing", "evidence", "answer", "Not", "warning:"
            ]  # fmt: skip
            assert lines[1].strip() == "nothing found"
            assert lines[-2:] == [headed("lek", "nothing"), "warning: the searches found nothing"]
            assert not any("<" in line for line in lines)
    assert list(tmp_path.iterdir()) == []
    with serve(chat_reply(lambda prompt, draw: "<answer> lek </answer>")) as endpoint:
        assert main(asked(endpoint.url, *sparse, "--prompt.profile", "rag", question="Zzyzx?")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["question  Zzyzx?", f"{'':<9} nothing found"]
    assert lines[2].startswith("answer")


@pytest.mark.parametrize(("key", "value"), [
    ("best_of", "3"),
    ("limit", "5"),
    ("sample", "5"),
    ("budget.calls", "9"),
    ("budget.minutes", "1"),
])  # fmt: skip
def test_keys_that_mean_nothing_for_one_episode_are_refused(
    key: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(asked("http://127.0.0.1:1/v1", "--index", "nowhere", f"--{key}", value)) == 2
    assert f"{key} is for steprag infer" in capsys.readouterr().err


def test_a_rate_limit_holds(sparse: tuple[str, ...]) -> None:
    """Two requests a second: of five, the last is sent a second and a half after the first, or later."""
    script, times = chat_reply(five_steps), list[float]()

    def reply(request: dict[str, Any]) -> tuple[int, object]:
        times.append(time.monotonic())
        return script(request)

    with serve(reply) as endpoint:
        assert main(asked(endpoint.url, *sparse, "--policy.rate.requests", "120")) == 0
    assert len(times) == 5
    assert times[-1] - times[0] > 1.4


def five_steps(prompt: str, draw: int) -> str:
    del draw
    if prompt.endswith("Read the passages."):
        return evidence("None")
    return query(f"currency {prompt.count('<query>')}") if prompt.count("<query>") < 2 else answer("lek")


def options(cls: type[StageConfig], *argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_options(parser, cls)
    return parse_arguments(parser, argv)


@pytest.mark.parametrize("cls", [InferConfig, ChatConfig])
def test_where_nothing_says_who_answers_the_best_shipped_agent_does(
    cls: type[InferConfig] | type[ChatConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("policy: {concurrency: 2}\nseed: 3\n")
    best = next(iter(shipped_adapters()))
    for argv in ((), ("--policy.concurrency", "1"), ("--config", str(recipe))):
        assert config_of(cls, options(cls, *argv)).policy.adapter == best
    for argv in (
        ("--model", "runs/dpo"),
        ("--adapter", "none"),
        ("--prompt.profile", "rag"),
        ("--base_url", "http://127.0.0.1:1/v1"),
        ("--policy.engine", "transformers"),
    ):
        assert config_of(cls, options(cls, *argv)).policy.adapter is None
    recipe.write_text("policy: {model: runs/dpo}\n")
    assert config_of(cls, options(cls, "--config", str(recipe))).policy.adapter is None
    monkeypatch.setenv("STEPRAG_POLICY__MODEL", "runs/dpo")
    assert config_of(cls, options(cls)).policy.adapter is None


def test_the_trained_agent_comes_before_the_warm_start(tmp_path: Path) -> None:
    for folder in ("stack", "warmstart", "agent"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "adapter_config.json").write_text("{}")
        assert next(iter(shipped_adapters(tmp_path).values())).name == folder
    assert [*shipped_adapters(tmp_path)] == [*SHIPPED]
