"""A turn in the words of the OpenAI API: steps as reasoning, the answer as content, sources as annotations."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from typing import Any

from inference.chat.events import Event
from inference.chat.service import dumped, sse

SOURCE_LIST = "\n\nSources:\n\n"
"""What stands between an answer and the links to its sources."""
Link = Callable[[int, str], str]
"""The address of a turn's passage, by its number and title."""
_TAG = re.compile(r"<(/?)([a-z_]{1,20})> *")
_OPEN = re.compile(r" *(?:<[^<>\n]{0,22}(?:> *)?|[!\]])?\Z")
"""What the next piece may make a tag, an image or a link of, and blanks, which a step need not end with."""
_HTML = re.compile(r"<(?=[A-Za-z/!?])")


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
                titles = [f"- [{item['n']}] {inert(' '.join(item['title'].split()))}\n" for item in event["items"]]
                return "".join(titles or ["- nothing found\n"]) + "\n"
            case _:
                return ""

    def _written(self, piece: str) -> str:
        text = self._held + piece
        held = _OPEN.search(text)
        self._held = held.group() if held else ""
        return self._shown(text.removesuffix(self._held))

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


def inert(text: str) -> str:
    """Text that neither Markdown nor HTML makes an element of that loads or links anything."""
    return text.replace("<", "‹").replace("](", "] (").replace("![", "! [")


def reasoning_of(events: Iterable[Event]) -> str:
    """The whole reasoning of a turn that ended."""
    told = Reasoning()
    return "".join(told.of(event) for event in events).rstrip()


def citation_annotations(events: list[Event], link: Link) -> list[dict[str, Any]]:
    """The passages that the answer rests on, as the API's annotations over the whole answer. Passages that have no
    address of the web have one of this service.
    """
    answer = next((event for event in events if event["type"] == "answer"), None)
    if answer is None:
        return []
    items = {item["n"]: item for event in events if event["type"] == "passages" for item in event["items"]}
    end = len(content_of(events))
    return [
        {"type": "url_citation", "url_citation": {
            "url": item["url"] or link(one["n"], item["title"]), "title": item["title"],
            "start_index": 0, "end_index": end}}
        for one in answer["sources"] if one["cited"] for item in [items[one["n"]]]
    ]  # fmt: skip


def source_list(annotations: list[dict[str, Any]]) -> str:
    """The cited passages as a list of links, to stand behind the answer; empty where there are none."""
    cited = [one["url_citation"] for one in annotations]
    titles = [re.sub(r"[\[\]()]", "", inert(" ".join(one["title"].split()))) for one in cited]
    rows = [f"{n}. [{title}](<{one['url']}>)" for n, (title, one) in enumerate(zip(titles, cited, strict=True), 1)]
    return SOURCE_LIST + "\n".join(rows) if rows else ""


def content_of(events: list[Event]) -> str:
    """What the client shows as the answer: the answer, without images and HTML, or why there is none. A `<` that begins
    no tag stays, as in "a < b".
    """
    answer = next((event["content"] for event in events if event["type"] == "answer"), None)
    if answer is not None:
        return _HTML.sub("‹", answer).replace("![", "! [")
    return f"(no answer: {events[-1].get('finish', 'cancelled')})"


def usage_of(last: Event) -> dict[str, int]:
    """A turn's usage in the API's words."""
    used = last.get("usage", {})
    prompt, completion = used.get("prompt_tokens", 0), used.get("completion_tokens", 0)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


class Chunks:
    """Makes the chunks of one streamed completion."""

    def __init__(self, id: str, model: str, ignored: list[str]) -> None:
        self._head = {"id": id, "object": "chat.completion.chunk", "created": int(time.time()), "model": model}
        self._ignored, self._reasoning = ignored, Reasoning()

    def event(self, event: Event) -> bytes:
        """A chunk for a native event; the first one says which fields of the request change nothing."""
        delta: dict[str, Any] = {}
        if event["type"] == "turn.started":
            delta, event = {"role": "assistant", "content": ""}, {**event, "ignored": self._ignored}
        if words := self._reasoning.of(event):
            delta |= {"reasoning_content": words, "reasoning": words}
        return self._chunk(delta, steprag=event)

    def ending(self, content: str, annotations: list[dict[str, Any]], usage: dict[str, int] | None) -> bytes:
        """The answer, the reason for the end, and the usage where it was asked for."""
        last = self._chunk({"content": content, "annotations": annotations}) + self._chunk({}, "stop")
        return last if usage is None else last + sse(dumped({**self._head, "choices": [], "usage": usage}))

    def _chunk(self, delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return sse(dumped({**self._head, "choices": [choice], **more}))


def completion(
    id: str, model: str, content: str, usage: dict[str, int], steprag: dict[str, Any], **message: Any
) -> dict[str, Any]:
    """A whole completion; `message`: further fields of the answer, `steprag` what is beyond the API."""
    return {
        "id": id, "object": "chat.completion", "created": int(time.time()), "model": model,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": content, **message},
                     "finish_reason": "stop"}],
        "usage": usage, "steprag": steprag,
    }  # fmt: skip
