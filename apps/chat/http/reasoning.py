"""A turn's events as the text that OpenAI clients show as reasoning."""

from __future__ import annotations

import re
from collections.abc import Iterable

from apps.chat.routing import tells_talk
from apps.chat.turns.events import Event

_TAG = re.compile(r"<(/?)([a-z_]{1,20})> *")
_OPEN = re.compile(r"(?:<[^<>\n]{0,22}>?|[!\]])\Z")
"""The end of a text that the next piece may complete to a tag, an image or a link; and blanks at the end."""


class Reasoning:
    """A turn's events as the text that a client shows as reasoning: what the agent writes while it writes it, and the
    titles of what it finds.

    Clients render Markdown and HTML, and what pages and models wrote is a stranger's: tags of actions are left out,
    others, images and links are made inert.
    """

    def __init__(self) -> None:
        self._held, self._begun = "", False

    def of(self, event: Event) -> str:
        """The text that the event adds; empty for most."""
        match event["type"]:
            case "question" if event["question"] != event["asked"]:
                return f"Question: {inert(event['question'])}\n\n"
            case "step.delta":
                return self._written(event["text"])
            case "step.finished" | "turn.finished":
                return self._ended()
            case "passages":
                titles = [
                    f"- [{item['n']}] {inert(' '.join((item['title'] or item['id']).split()))}\n"
                    for item in event["items"]
                ]
                return "".join(titles or ["- nothing found\n"]) + "\n"
            case _:
                return ""

    def _written(self, piece: str) -> str:
        text = self._held + piece
        shown = _closed(text)
        self._held = text[len(shown) :]
        return self._shown(shown)

    def _ended(self) -> str:
        rest, self._held = self._shown(self._held).rstrip(), ""
        begun, self._begun = self._begun, False
        return f"{rest}\n\n" if begun or rest else ""

    def _shown(self, text: str) -> str:
        def named(tag: re.Match[str]) -> str:
            alone = not self._begun and not text[: tag.start()].strip()
            return f"{tag[2]}: " if alone and not tag[1] else ""

        shown = inert(_TAG.sub(named, text))
        self._begun = self._begun or bool(shown.strip())
        return shown


def _closed(text: str) -> str:
    """The text without blanks, and what may become a tag or a mark, at its end."""
    bare = text.rstrip(" ")
    if not bare.endswith(">"):
        bare = text
    open_ = _OPEN.search(bare, max(0, len(bare) - 24))
    return (bare[: open_.start()] if open_ else text).rstrip(" ")


def inert(text: str) -> str:
    """The text, changed so that neither Markdown nor HTML finds an image, a link or a tag in it."""
    return text.replace("<", "‹").replace("](", "] (").replace("![", "! [")


def reasoning_of(events: Iterable[Event]) -> str:
    """The whole reasoning of a turn that ended; of conversation there is none."""
    told, listed = Reasoning(), [*events]
    return "" if any(map(tells_talk, listed)) else "".join(map(told.of, listed)).rstrip()
