"""Models of strangers: their chat templates are programs, and run under a limit."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from steprag.engines import tokens
from steprag.engines.pretrained import from_pretrained
from steprag.engines.tokens import prompt_tokens
from steprag.errors import ConfigError
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
    monkeypatch.setattr(tokens, "TEMPLATE_SECONDS", 0.3)
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
])  # fmt: skip
def test_a_model_folder_that_is_damaged_is_named(name: str, content: bytes, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = make_llama(tmp_path / "model", ["who?"])
    (folder / name).write_bytes(content)
    with pytest.raises(ConfigError, match=f"{folder} cannot be loaded: "):
        from_pretrained(AutoModelForCausalLM, str(folder))
