"""Reasoning that thinking models write before their reply: which marks enclose it, and where it ends.

The marks are those of the models' chat templates; a template may have written the opening one itself.
"""

from __future__ import annotations

MARKS = (
    *((f"<{name}>", f"</{name}>") for name in ("think", "thinking", "thought", "seed:think")),
    ("[THINK]", "[/THINK]"),  # Magistral
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A
    ("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),  # gpt-oss
    ("◁think▷", "◁/think▷"),  # Kimi-VL
)
"""What opens and closes reasoning. `<reasoning>` is none of them: it is an action of the stack grammar."""


def split(text: str) -> tuple[str, str]:
    """The reasoning that a text begins with, and the reply behind it.

    Reasoning that is opened and never closed has no reply. A closing mark that nothing opened ends reasoning that the
    template had opened.
    """
    own = _opened(text)
    ends = [own] if own else [closing for _, closing in MARKS]
    places = [(text.find(closing), closing) for closing in ends if closing in text]
    if not places:
        return (text.strip(), "") if own else ("", text)
    place, closing = min(places)
    return text[:place].strip(), text[place + len(closing) :].lstrip()


def left_open(text: str) -> tuple[str, str] | None:
    """The marks of the thought that a text, such as the end of a prompt, opens and does not close."""
    places = [(text.rfind(opening), opening, closing) for opening, closing in MARKS]
    place, opening, closing = max(places)
    return (opening, closing) if place >= 0 and closing not in text[place:] else None


def goes_on(text: str) -> bool:
    """Whether what has come of a text is, or may become, reasoning that is not closed yet."""
    own, begins = _opened(text), text.lstrip()
    return own not in text if own else any(opening.startswith(begins) for opening, _ in MARKS)


def _opened(text: str) -> str | None:
    """The mark that closes the reasoning with which a text begins."""
    begins = text.lstrip()
    return next((closing for opening, closing in MARKS if begins.startswith(opening)), None)
