"""Models of strangers: their chat templates are programs, and run under a limit.

Engines that are served to this machine want a key, so no web page can ask them.
"""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from data_generation.config import GenerateConfig
from steprag.agent.grammars import TRANSCRIPT
from steprag.config.load import load_config
from steprag.console.terminal import guarded
from steprag.engines import templates
from steprag.engines.launch import ENGINE_KEY, EngineSpec, command
from steprag.engines.pretrained import from_pretrained, loading
from steprag.engines.server import serving_us
from steprag.engines.tokens import prompt_tokens
from steprag.engines.transformers_serve import with_scores
from steprag.errors import ConfigError
from steprag.policy.open import open_policy
from steprag.types import Message
from tests.models import make_llama

pytest.importorskip("transformers")
CHAT = (Message(role="user", content="who?"),)


def tokenizer(template: str) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<unk>": 0, "who": 1, "?": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    made = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", name_or_path="theirs")
    made.chat_template = template
    return made


@pytest.mark.parametrize(("template", "problem"), [
    ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "more than 0.3 seconds"),
    ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ("{{ cycler.__init__.__globals__.os.system('touch evil') }}", "unsafe"),
    ("{% for message in messages %}", "end of template"),
    ("{{ raise_exception('no') }}", "no"),
    ("{{ messages[7].content.x.y }}", "has no|undefined"),
])  # fmt: skip
def test_a_chat_template_is_bounded(
    template: str, problem: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(templates, "TEMPLATE_SECONDS", 0.3 if "seconds" in problem else 60)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"chat template of theirs cannot be used: .*({problem})"):
        prompt_tokens(CHAT, tokenizer(template))
    assert not [*tmp_path.iterdir()]


def test_a_good_template_renders_in_any_thread_and_leaves_timers_alone() -> None:
    good, found = tokenizer("{% for message in messages %}{{ message.content }}{% endfor %}"), []
    handler = signal.getsignal(signal.SIGALRM)
    before = signal.getitimer(signal.ITIMER_REAL)[0]
    assert prompt_tokens(CHAT, good) == [1, 2]
    assert signal.getsignal(signal.SIGALRM) is handler
    assert bool(before) == bool(signal.getitimer(signal.ITIMER_REAL)[0])
    thread = threading.Thread(target=lambda: found.append(prompt_tokens(CHAT, good)))
    thread.start()
    thread.join()
    assert found == [[1, 2]]


@pytest.mark.parametrize(("name", "content"), [
    ("model.safetensors", b"\x10\x00\x00\x00\x00\x00\x00\x00{"),
    ("model.safetensors", b"\xff" * 64),
    ("config.json", b"[" * 100_000),
    ("config.json", b"[]"),
    ("config.json", b'{"model_type": "llama"'),
    *(("tokenizer.json", content) for content in (  # its library raises Exception itself
        b"{}", b'{"version": "1.0", "model": {"type": "BPE"}}', b"\xff", b"[1]")),
])  # fmt: skip
def test_a_model_folder_that_is_damaged_is_named(name: str, content: bytes, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = make_llama(tmp_path / "model", ["who?"])
    (folder / name).write_bytes(content)
    with pytest.raises(ConfigError, match=f"{folder} cannot be loaded: "):
        from_pretrained(AutoTokenizer if name == "tokenizer.json" else AutoModelForCausalLM, str(folder))


@pytest.mark.parametrize(("part", "value"), [
    ("normalizer", {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 20_000_000}),
    ("normalizer", {"type": "Replace", "pattern": {"Regex": "(a|aa)+$"}, "content": ""}),
    ("pre_tokenizer", {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}),
])  # fmt: skip
def test_a_tokenizer_that_ends_or_stops_the_process_is_named(
    part: str, value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoTokenizer

    monkeypatch.setattr("steprag.engines.tokenizer_probe.SECONDS", 5)
    folder = make_llama(tmp_path / "model", ["who?"])
    told = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(told | {part: value}))
    with pytest.raises(ConfigError, match=f"{folder} cannot be loaded: its tokenizer.json (ends|takes)"):
        from_pretrained(AutoTokenizer, str(folder))


def test_a_librarys_panic_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def panics(_: list[str]) -> int:
        raise type("PanicException", (BaseException,), {})("called `Result::unwrap()` on an `Err` value:\nmore")

    assert guarded(panics, []) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_error_of_ours_is_not_told_as_the_models() -> None:
    for error, told in ((KeyError("a"), ConfigError), (Exception("data did not match"), ConfigError),
                        (NameError("a"), NameError), (StopIteration(), StopIteration)):  # fmt: skip
        with pytest.raises(told), loading("theirs"):
            raise error
    with pytest.raises(ConfigError, match="it needs Python code of its own"), loading("theirs"):
        raise ValueError(f"{'inspect /a/long/path ' * 20}. Please pass the argument `trust_remote_code=True`")


KEY = "sk-canary-0123456789"


@pytest.mark.parametrize("key", [None, KEY])
def test_the_transformers_server_wants_its_key(key: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENGINE_KEY, raising=False)
    if key:
        monkeypatch.setenv(ENGINE_KEY, key)

    def build(model_manager: object, *, generation_state: object) -> FastAPI:
        app = FastAPI()
        app.add_api_route("/health", lambda: "well")
        app.add_api_route("/v1/models", lambda: ["m"])
        return app

    async def statuses() -> list[int]:
        transport = httpx2.ASGITransport(with_scores(build)(None, generation_state=None))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            models, sent = "/v1/models", list[int]()
            for path, given in (("/health", "x"), (models, "x"), ("/score", ""), (models, KEY), (models, "\u00fc")):
                head = [(b"Authorization", f"Bearer {given}".encode())]
                sent.append((await client.get(path, headers=head)).status_code)
            return sent

    assert asyncio.run(statuses()) == ([200, 401, 401, 200, 401] if key else [200, 200, 405, 200, 200])


def test_the_key_of_an_engine_of_ours_stands_in_no_command_line() -> None:
    pytest.importorskip("xllamacpp")
    built = command(EngineSpec(key=KEY))
    assert KEY not in " ".join(built.argv)
    assert KEY not in repr(EngineSpec(key=KEY))
    assert KEY in built.env.values()


@pytest.mark.slow
def test_an_engine_of_ours_answers_nobody_else() -> None:
    config = load_config(GenerateConfig).policy

    async def sampled() -> str:
        async with open_policy(config, TRANSCRIPT) as policy, policy.beside(config, TRANSCRIPT) as other:
            asked = (Message(role="user", content="who?"),)
            await other.sample(asked, ("answer",), n=1, seed=1)
            return (await policy.sample(asked, ("answer",), n=1, seed=1)).completions[0].text

    assert asyncio.run(sampled())
    with serving_us(EngineSpec()) as endpoint:
        body = b'{"messages": [{"role": "user", "content": "?"}], "max_tokens": 1}'
        for path in ("/chat/completions", "/completions"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(endpoint.base_url + path, body, timeout=30)
