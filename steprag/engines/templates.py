"""Chat templates: programs that come with models, run within bounds; trials tell what one wants and what it drops."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from steprag.errors import ConfigError
from steprag.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEMPLATE_SECONDS = 10.0
"""For one chat; good templates take milliseconds."""
KWARGS = "chat_template_kwargs"
"""The tokenizer's attribute that holds the values that every chat gives the template, such as `enable_thinking`."""
_TOLD, _ASKED, _SAID = (Message(role=role, content=f"{role}-said-this") for role in ("system", "user", "assistant"))
"""Messages that are rendered to see what a template makes of them."""
SYSTEM_ROLE = "give a prompt profile with system_role: user"


class NotEncoded(ConfigError):
    """A chat that the template refuses, or a text that the tokenizer cannot hold: no fault of other rows."""


def applied(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], **options: Any) -> Any:
    """What the chat template makes of a prompt. Raises as `rendered`, and ConfigError where it leaves out the system
    message.
    """
    made = rendered(tokenizer, messages, **options)
    if not trial(tokenizer).fits(messages):
        raise ConfigError(f"the chat template of {tokenizer.name_or_path} leaves out system messages; {SYSTEM_ROLE}")
    return made


def rendered(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], **options: Any) -> Any:
    """What the chat template makes of any chat, its contents as strings or as parts, whichever it shows; raises as
    `_run`. The error names the remedy where a trial shows that the system message is at fault.
    """
    takes = trial(tokenizer)
    try:
        return _run(tokenizer, as_parts(messages) if takes.parts else messages, **options)
    except NotEncoded as error:
        raise NotEncoded(f"{error}" if takes.fits(messages) else f"{error}; {SYSTEM_ROLE}") from None


def as_parts(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """A chat whose contents are lists of parts, as the templates of many vision-language models want them."""

    def parts(content: Any) -> Any:
        return [{"type": "text", "text": content}] if isinstance(content, str) else content

    return [{**message, "content": parts(message["content"])} for message in messages]


@dataclass(frozen=True)
class Takes:
    """Whether a chat template wants contents as lists of parts, and whether it shows a system message: `system`, before
    a user's message; `continued`, in a chat that ends with the assistant's (Mistral's shows it in the last turn alone).
    """

    parts: bool = False
    system: bool = True
    continued: bool = True

    def fits(self, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the template shows the system message of a chat, if that begins with one."""
        shown = self.continued if messages[-1]["role"] == "assistant" else self.system
        return shown or messages[0]["role"] != "system"


def trial(tokenizer: Any) -> Takes:
    """What chats of known words tell of a tokenizer's template. One that shows no chat at all is blamed for nothing."""
    return _tried(tokenizer, f"{tokenizer.chat_template} {getattr(tokenizer, KWARGS, None)}")


@lru_cache(maxsize=32)
def _tried(tokenizer: Any, _template: str) -> Takes:
    def shown(*chat: Message, parts: bool) -> bool:
        try:
            text = str(_run(tokenizer, as_parts(chat) if parts else chat, tokenize=False))
        except NotEncoded:
            return False
        printed = parts and any(f"{quote}text{quote}" in text for quote in "'\"")  # a list as code, not its text
        return not printed and all(message["content"] in text for message in chat)

    for chat in ((_TOLD, _ASKED, _SAID), (_TOLD, _ASKED), (_ASKED, _SAID), (_ASKED,)):
        for parts in (False, True):
            if shown(*chat, parts=parts):
                return Takes(parts, _TOLD in chat, len(chat) == 3 or not shown(_ASKED, _SAID, parts=parts))
    return Takes()


def _run(tokenizer: Any, messages: Sequence[Any], **options: Any) -> Any:
    """What the chat template makes of a chat. It is a program that came with the model, and runs in jinja2's sandbox.

    Raises NotEncoded where it fails or asks for what the sandbox forbids, ConfigError where it takes more than
    `TEMPLATE_SECONDS`.
    """
    import jinja2

    chat: Any = list(messages)
    cannot = f"the chat template of {tokenizer.name_or_path} cannot be used: "
    try:
        with _in_time(TEMPLATE_SECONDS):
            return tokenizer.apply_chat_template(chat, **{**getattr(tokenizer, KWARGS, {}), **options})
    except _OutOfTime as error:
        raise ConfigError(f"{cannot}{error}") from None
    except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
        raise NotEncoded(cannot + " ".join(str(error).split())[:200]) from None


class _OutOfTime(Exception):
    """A template ran too long."""


@contextmanager
def _in_time(seconds: float) -> Iterator[None]:
    """Raises _OutOfTime in the block once the time is over. Only the main thread can be interrupted so; others are
    not bounded. A timer that runs already continues afterwards.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(*_: object) -> None:
        raise _OutOfTime(f"it takes more than {seconds:g} seconds for one chat")

    handler, begun = signal.signal(signal.SIGALRM, late), time.monotonic()
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        again = max(left - (time.monotonic() - begun), 0.001) if left else 0.0
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, again, interval)
