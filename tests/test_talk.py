"""Modes that talk: what is taken for talk, conversation with its history, an adapter for each mode."""

from __future__ import annotations

import asyncio
import io
import os
from pathlib import Path
from typing import Any

import httpx2
import pytest

from apps.chat.config import ChatConfig
from apps.chat.memory import fitting
from apps.chat.routing import mode_named, route_of
from apps.chat.serve import _profiles
from apps.commands import main
from steprag import atlas
from steprag.agent.grammars import GRAMMARS
from steprag.agent.inert import neutralise
from steprag.agent.talk import reply_to
from steprag.config.env_file import without_env
from steprag.config.load import load_config
from steprag.config.sections import PolicyConfig
from steprag.engines.launch import EngineSpec, command
from steprag.engines.server import serving
from steprag.errors import ConfigError
from steprag.policy.open import open_policy
from steprag.records.inputs import read_questions
from steprag.records.jsonl import read_records, write_json
from steprag.records.turns import Turn
from steprag.records.yaml_files import read_yaml
from steprag.types import Completion, Message
from tests.browser import browser, page_in
from tests.chat_parts import TOKEN, WORK, WritingPolicy, chat, scripted
from tests.test_chat_openai import asked, client
from tests.test_chat_page import ask, ended, opened

__all__ = ["browser"]

HELLO = "  Hello! I can talk, <b>a < b</b> ![x](http://x.example/y) and "


def test_messages_are_told_apart_and_no_question_of_atlas_is_talk() -> None:
    rows = read_yaml(Path(__file__).with_name("routes.yaml"))
    wrong = [(kind, said) for kind, each in rows.items() for said in each if route_of(said).kind != kind]
    assert wrong == [("question", "Tell me a story from the Iliad that mentions Hector")]
    assert len(rows["talk"]) == len(rows["question"]) == 60
    assert {route_of(one.question).kind for part in ("dev", "test") for one in read_questions(atlas.path(part))} == {
        "question"
    }


@pytest.mark.parametrize(("name", "mode"), [
    ("chat", "direct"), ("search", "local"), ("auto", "auto"), ("reasoning", "reasoning"), ("web", None),
])  # fmt: skip
def test_old_and_other_words_name_modes(name: str, mode: str | None) -> None:
    assert mode_named(name, ("auto", "local", "direct", "reasoning")) == mode


def test_talk_is_a_conversation_that_is_told_again_as_it_was(tmp_path: Path) -> None:
    policy = WritingPolicy(scripted(HELLO, "You said hi.", *WORK, "Again."))
    with chat(policy, tmp_path) as served:
        first = served.whole("I feel great!")
        more = {"conversation": first[0]["conversation"]}
        second = served.whole("What did I just say?", mode="chat", **more)
        question = served.whole("Which currency?", **more)
        again = served.client.post(f"/api/turns/{second[0]['turn']}/again").json()["turn"]
        served.events(again)
        step = served.client.get(f"/api/turns/{second[0]['turn']}/steps/0").json()
        fork = served.client.post(f"/api/turns/{second[0]['turn']}/fork", json={"step": 0, "text": "No."})
    assert (first[0]["mode"], first[1]["route"], first[1]["why"]) == ("auto", "talk", "it is about the person")
    assert (second[0]["mode"], second[-2]["content"]) == ("direct", "You said hi.")
    assert question[1]["route"] == "question"
    assert {"passages"} <= {event["type"] for event in question} - {event["type"] for event in (*first, *second)}
    history = [("user", "I feel great!"), ("assistant", neutralise(HELLO.strip())), ("user", "What did I just say?")]
    assert [(one["role"], one["content"]) for one in policy.prompts[1][1:]] == history
    assert policy.prompts[1] == policy.prompts[-1] == tuple(step["messages"])  # kept, and tried again, as it was
    assert [one["text"] for one in step["candidates"]] == ["You said hi."]
    with chat(policy, tmp_path) as served:
        told = [served.events(one[0]["turn"]) for one in (first, second)]
    assert [event["type"] for event in told[0]] == [one["type"] for one in first if one["type"] != "step.delta"]
    assert [told[0][1]["why"], told[1][-2]["content"]] == ["it is about the person", "You said hi."]
    assert (fork.status_code, fork.json()["error"]["code"]) == (422, "no_steps")
    turns = list(read_records(tmp_path / "turns.jsonl", Turn))
    assert [turn.route and turn.route.kind for turn in turns] == ["talk", None, "question", None]
    assert (turns[1].history, turns[2].history) == ((("I feel great!", HELLO.strip()),), None)


@pytest.mark.parametrize(("said", "mode", "part"), [
    ("hello, who are you?", "auto", "not a person"), ("What can you do?", "direct", "not a person"),
    ("Thanks a lot!", "auto", "You are welcome"), ("Hi! My name is Ben.", "direct", "Nice to meet you"),
    ("good evening", "chat", "Ask me a question"),
])  # fmt: skip
def test_greetings_names_and_thanks_get_fixed_words_and_no_model_is_asked(said: str, mode: str, part: str) -> None:
    policy = WritingPolicy(scripted("I'm Liam."))
    with chat(policy) as served:
        told = served.whole(said, mode=mode)
    assert part in told[-2]["content"]
    assert policy.prompts == []
    assert "lacks" not in told[-2]
    assert main(["ask", said, "--index", "nowhere"]) == 0
    assert reply_to("Thanks, but who wrote Hamlet?") is reply_to("I feel great") is None


def test_who_wants_no_talk_gets_a_search() -> None:
    with chat(WritingPolicy(scripted(*WORK))) as served:
        told = served.whole("I feel great!", mode="search")
        served.desk.chat.__dict__["talk"] = False
        served.policy.script = scripted(*WORK)
        off = served.whole("I feel great!")
    assert "route" not in told[1] | off[1]
    assert (told[0]["mode"], told[-2]["content"], off[-2]["content"]) == ("local", "lek", "lek")


def test_clients_of_the_api_hear_talk_as_the_answer_while_it_is_written() -> None:
    policy = WritingPolicy(scripted(HELLO))
    with chat(policy) as served:
        before: Any = [{"role": "user", "content": "I am Ben."}, {"role": "assistant", "content": "Hi Ben."}, *asked()]
        made = client(served).chat.completions.create(model="agent-chat", messages=before, stream=True)
        deltas = [chunk.choices[0].delta for chunk in made]
    pieces = [delta.content for delta in deltas if delta.content]
    assert "".join(pieces) == "Hello! I can talk, ‹b>a < b‹/b> ! [x](http://x.example/y) and"
    assert len(pieces) > 5
    assert not any(getattr(delta, "reasoning_content", None) for delta in deltas)
    assert [one["content"] for one in policy.prompts[0][1:3]] == ["I am Ben.", "Hi Ben."]


@pytest.mark.parametrize(("room", "kept"), [(None, 2), (6, 2), (5, 1), (2, 1), (1, 0), (0, 0)])
def test_the_last_exchanges_that_fit_are_remembered(room: int | None, kept: int) -> None:
    assert fitting([("ab", "cd"), ("e", "f")], room) == (("ab", "cd"), ("e", "f"))[2 - kept :]


def test_free_text_is_an_answer_also_where_it_was_cut() -> None:
    talk = GRAMMARS["talk"]
    assert talk.parse(Completion(" So be ", "length"), ("answer",)).content == "So be"
    assert (talk.gbnf(("answer",)), talk.regex(("answer",))) == (
        "root ::= [^\\x00]+\n",
        "[\\s\\S]+",
    )


def tiny_adapter(folder: Path, seed: int) -> str:
    """A LoRA adapter of rank 1 on one layer of the embedded model, strong enough to change what it says."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    random, name = torch.Generator().manual_seed(seed), "base_model.model.model.layers.20.mlp.down_proj"
    sizes = {f"{name}.lora_A.weight": (1, 1536), f"{name}.lora_B.weight": (576, 1)}
    save_file(
        {key: torch.randn(size, generator=random) for key, size in sizes.items()}, folder / "adapter_model.safetensors"
    )
    write_json(folder / "adapter_config.json", {"peft_type": "LORA", "r": 1, "lora_alpha": 2, "bias": "none",
                                                "target_modules": ["down_proj"], "layers_to_transform": [20],
                                                "base_model_name_or_path": "smollm2-135m-instruct"})  # fmt: skip
    return str(folder)


@pytest.mark.slow
def test_each_mode_is_answered_by_its_own_adapter(tmp_path: Path) -> None:
    """One engine, started here and then asked as one that runs already (`/lora-adapters`)."""
    one, two = (tiny_adapter(tmp_path / f"mode{seed}", seed) for seed in (1, 2))
    hello = (Message(role="user", content="Say hello."),)
    sampling: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "constrained": False, "concurrency": 1}

    async def said(config: PolicyConfig, more: tuple[str, ...], *names: str | None) -> list[str]:
        async with open_policy(config, GRAMMARS["talk"], more) as policy:
            ways = [await policy.switched(name) for name in names]
            replies = [await way.sample(hello, (), n=1, seed=0) for way in (policy, *ways)]
            return [reply.completions[0].text for reply in replies]

    base, first, second, alone = asyncio.run(said(PolicyConfig(**sampling), (one, two), one, two, None))
    assert len({base, first, second}) == 3
    assert base == alone
    own, other, bare, same = asyncio.run(said(PolicyConfig(adapter=one, **sampling), (two,), two, None, one))
    assert [own, other, bare, same] == [first, second, base, first]
    with serving(EngineSpec(adapter=one, more=(two,), parallel=1)) as there:
        remote = PolicyConfig(model=there.model, base_url=there.base_url, **sampling)
        file = next(Path(tmp_path.anchor) / part for part in command(EngineSpec(adapter=two)).argv if "mode2-" in part)
        assert asyncio.run(said(remote, (), "1", file.name, file.stem)) == [first, second, second, second]
        with pytest.raises(ConfigError, match=r"has loaded mode1-\w+.gguf, mode2-\w+.gguf \(--lora\), not 'nobody'"):
            asyncio.run(said(remote, (), "nobody"))
    with pytest.raises(ConfigError, match="engine transformers serves one adapter"):
        command(EngineSpec("transformers", more=(one,)))


@pytest.mark.parametrize(("options", "told"), [
    ({"modes.reasoning.profile": "rag"}, "modes.reasoning.profile: rag searches"),
    ({"modes.direct.profile": "transcript"}, "modes.direct.profile: transcript searches"),
    ({"modes.direct.adapter": "atlas-agent"}, "was trained on prompts of profile transcript"),
    ({"modes.direct.adapter": "/nowhere"}, "is no adapter"),
])  # fmt: skip
def test_modes_that_cannot_be_are_refused_at_the_start(options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        _profiles(load_config(ChatConfig, overrides=options))


def test_a_terminal_talks_to_a_service(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A mode that is none, a token that is missing, and a service that is gone are told."""
    lines = "I feel great!\n/mode nosuch\nWho?\n/mode search\nWhich currency?\n/new\n\n"
    monkeypatch.delenv("STEPRAG_TOKEN", raising=False)
    with chat(WritingPolicy(scripted("Hello you.", *WORK))) as served:
        assert main(["chat", served.url]) == 2
        monkeypatch.setenv("STEPRAG_TOKEN", TOKEN)
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        assert main(["chat", f"{served.url}/#token=x"]) == 0
        assert len(served.client.get("/api/conversations").json()["conversations"]) == 1
    assert main(["chat", served.url]) == 2
    said, told = capsys.readouterr()
    assert "Hello you.\nmode 'nosuch' is not one of auto, local, direct, reasoning\n" in said
    assert "  [1] Tirana\n" in said
    assert said.endswith("= lek [1] [2]\n")
    assert "export STEPRAG_TOKEN=…" in told
    assert "the service does not answer" in told


@pytest.mark.parametrize(("mode", "reply"), [
    ("chat", {"response": "Hello you.", "mode": "direct", "route": None, "finish": "answer", "reasoning": ""}),
    ("auto", {"response": "Hello you.", "mode": "auto", "route": "talk", "finish": "answer"}),
    ("search", {"response": None, "mode": "local", "route": None, "finish": "no_action"}),
])  # fmt: skip
def test_generate_answers_in_one_request(mode: str, reply: dict[str, Any]) -> None:
    with chat(WritingPolicy(scripted("Hello you."))) as served:
        told = served.client.post("/generate", json={"query": "I feel great!", "mode": mode}).json()
        wrong = served.client.post("/generate", json={"query": "I feel great!", "mode": "nosuch"})
        alone = httpx2.post(f"{served.url}/generate", json={"query": "I feel great!"})
        health = httpx2.get(f"{served.url}/api/health")
    assert {key: told[key] for key in reply} == reply
    assert (wrong.status_code, alone.status_code, health.json()) == (422, 401, {"status": "ok"})


def test_generate_cites_and_goes_on_in_its_conversation() -> None:
    with chat(WritingPolicy(scripted(*WORK, "It was the lek."))) as served:
        told = served.client.post("/generate", json={"query": "Which currency?"}).json()
        more = {"query": "Say that again.", "conversation": told["conversation"]}
        again = served.client.post("/generate", json=more).json()
    assert [one["title"] for one in told["sources"]] == ["Tirana", "Albania"]
    assert "Albania" in told["reasoning"]
    assert (again["response"], again["usage"]["completion_tokens"]) == ("It was the lek.", 5)
    assert [one["content"] for one in served.policy.prompts[-1][1:]] == ["Which currency?", "lek", "Say that again."]


@pytest.mark.parametrize(("text", "line"), [
    ("A_KEY=1\nsecret-without-a-name\n", 2), ("\n\nA_KEY='1\n", 3), ("A_KEY=1\n\nA-KEY=secret\n", 3),
    ("A_KEY\n", 1), ("A KEY=secret", 1), ("=secret", 1), ("A_KEY=sec\0ret", 1),
])  # fmt: skip
def test_a_wrong_line_of_an_environment_file_is_named_without_its_value(
    text: str, line: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("A_KEY", raising=False)
    (tmp_path / "env").write_text(text)
    assert main(["doctor", "--env", str(tmp_path / "env")]) == 2
    assert f"env:{line}: this line is no KEY=VALUE" in (told := capsys.readouterr().err)
    assert "secret" not in told
    assert "A_KEY" not in os.environ


def test_an_environment_file_gives_what_the_environment_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("A_KEY", "B_KEY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("C_KEY", "there")
    (tmp_path / "env").write_text("\ufeff# keys\nA_KEY=\"a\\tb\"\nexport B_KEY='x y' # of mine\nC_KEY=other\n")
    assert without_env(["serve", f"--env={tmp_path / 'env'}", "--port", "1"]) == ["serve", "--port", "1"]
    assert [os.environ[name] for name in ("A_KEY", "B_KEY", "C_KEY")] == ["a\tb", "x y", "there"]


@pytest.mark.slow
def test_the_page_says_what_was_taken_for_talk_and_asks_again_otherwise(browser: Any) -> None:
    with chat(WritingPolicy(scripted("Hello you.", *WORK))) as served, page_in(browser) as page:
        opened(page, served)
        ask(page, "I feel great!")
        turn = ended(page)
        assert "Read as talk: it is about the person." in turn.inner_text()
        assert turn.locator(".answer-text").inner_text().strip() == "Hello you."
        assert turn.get_by_role("button", name="Right").count() == 0  # talk is no answer to be judged
        turn.get_by_role("button", name="Search for it").click()
        searched = ended(page, 2)
        assert "lek" in searched.locator(".guess").inner_text()
        assert "Read as" not in searched.inner_text()
