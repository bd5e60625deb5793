"""Reasoning that thinking models write before their reply: which marks enclose it, and where it ends.

The marks are those of the models' chat templates; a template may have written the opening one itself.
"""

from __future__ import annotations

import re

_NAME = r"(?i:(?:\w{1,20}[:_])?(?:think|thinking|thought)(?:[:_][\w.-]{1,40})?)"
_TAGS = (rf"<{_NAME}>", rf"</{_NAME}>")
"""`<think>`, and what models make of it: `<seed:think>`, `<mm:think>`, `<longcat_think>`, `<think:NAME>`."""
MARKS = tuple((re.compile(opening), re.compile(closing), written) for opening, closing, written in (
    (*_TAGS, None),
    (r"\[THINK\]", r"\[/THINK\]", "[/THINK]"),  # Magistral
    (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>", "<|END_THINKING|>"),  # Command A
    (r"<\|inner_prefix\|>", r"<\|inner_suffix\|>", "<|inner_suffix|>"),  # Apertus
    (r"<\|channel>", r"<channel\|>", "<channel|>"),  # Gemma 4
    # gpt-oss, whose final channel may name a format; and where the endpoint has left its special tokens out
    (r"(?:<\|start\|>assistant)?<\|channel\|>(?:analysis|commentary)", r"<\|channel\|>final.{0,40}?<\|message\|>",
     "<|channel|>final<|message|>"),
    (r"analysis(?=[^\W_])", r"assistantfinal", ""),
    ("◁think▷", "◁/think▷", "◁/think▷"),  # Kimi-VL
))  # fmt: skip
"""What opens and closes reasoning, and how one that a prompt has opened is closed: by the tag of its name (None), or
not at all (empty). `<reasoning>` is none of them: it is an action of the stack grammar.
"""
_ANY_OPENING = re.compile("|".join(opening.pattern for opening, _, _ in MARKS))
_ANY_MARK = re.compile(rf"<(?P<opening>{_NAME})>|{'|'.join(closing.pattern for _, closing, _ in MARKS)}")
_OPENINGS = ("[THINK]", "◁think▷", "analysis", "<|start|>assistant<|channel|>analysis", "<|channel|>commentary")
_OPENING_TAG = re.compile(r"<[^<>\s]{0,64}\Z")
_BLANKS = re.compile(r"\s*")
MARK = 100
"""Characters that no mark exceeds, nor what decides that one opens."""


def split(text: str) -> tuple[str, str]:
    """The reasoning that a text begins with, and the reply behind it.

    Reasoning that is opened and never closed has no reply. A closing mark that nothing opened ends reasoning that the
    template had opened. Of several blocks all are reasoning, also one that stands between two parts of a reply.
    """
    thoughts, place = _leading(text)
    if _opened(text, place):
        return "\n".join([*thoughts, text[place:].strip()]), ""
    parts, opened = list[str](), None
    for mark in _ANY_MARK.finditer(text, place):
        if mark["opening"]:
            opened = mark.start() if opened is None else opened
            continue
        if opened is None:  # a lone closing mark: all before it was reasoning
            thoughts.append("".join([*parts, text[place : mark.start()]]).strip())
            parts = []
        else:
            parts.append(text[place:opened])
            thoughts.append(text[opened : mark.start()].strip())
        opened, place = None, _after_blanks(text, mark.end())
    return "\n".join(thoughts), "".join([*parts, text[place:]])


def left_open(text: str) -> tuple[str, str] | None:
    """The marks of the thought that a text, such as the end of a prompt, opens and does not close.

    Of gpt-oss without its special tokens, whose marks are words, nothing is said.
    """
    begun = [(found.start(), found.group(), closing, written) for opening, closing, written in MARKS if written != ""
             for found in opening.finditer(text)]  # fmt: skip
    if not begun:
        return None
    place, opening, closing, written = max(begun, key=lambda one: one[0])
    return None if closing.search(text, place) else (opening, written or f"</{opening[1:]}")


def goes_on(text: str) -> bool:
    """Whether what has come of a text is, or may become, reasoning that is not closed yet."""
    _, place = _leading(text)
    reply = text[place:].lstrip()
    begun = any(opening.startswith(reply) for opening in _OPENINGS) or _OPENING_TAG.match(reply)
    return bool(begun or _opened(text, place))


def brief(text: str) -> str:
    """A short text in place of one that goes on (`goes_on`): whatever follows, both have the same reply."""
    _, place = _leading(text)
    rest = text[place:].lstrip() if place else text
    if len(rest) > 2 * MARK and (rest.isspace() or _opened(rest, 0)):
        rest = f"{rest.lstrip()[:MARK]}\n{rest[-MARK:]}"
    return f"<think></think>{rest}" if place else rest


def _leading(text: str) -> tuple[list[str], int]:
    """The blocks of reasoning that a text begins with and closes, and where they end; 0 where there are none."""
    thoughts, place = list[str](), 0
    while (closing := _opened(text, place)) and (closed := closing.search(text, place)):
        thoughts.append(text[place : closed.start()].strip())
        place = _after_blanks(text, closed.end())
    return thoughts, place


def _opened(text: str, place: int) -> re.Pattern[str] | None:
    """What closes the reasoning that begins at that place of a text."""
    begins = _after_blanks(text, place)
    if not _ANY_OPENING.match(text, begins):
        return None
    return next((closing for opening, closing, _ in MARKS if opening.match(text, begins)), None)


def _after_blanks(text: str, place: int) -> int:
    found = _BLANKS.match(text, place)
    return found.end() if found else place
