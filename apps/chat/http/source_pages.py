"""A passage that an answer rests on, as a page of its own: what the links in the OpenAI API's annotations open.

Other clients' citations are links, and a link carries no token; so it carries a proof that the service made it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Response

from apps.chat.http.file_routes import document_of, events_of, item_of
from apps.chat.http.service import ChatService
from steprag.web.app import ApiError
from steprag.web.guard import Access

PREFIX = "/sources"
_PAGE = Path(__file__).parents[1] / "page" / "source.html"


def source_path(access: Access, turn: str, n: int, title: str) -> str:
    """The path of passage `n` of a turn, with its proof. The title is for people, whom Open WebUI shows the path."""
    name = re.sub(r"\W+", "-", title)[:60].strip("-") or "passage"
    return f"{PREFIX}/{quote(name)}/{turn}/{n}?key={_proof(access, turn, n)}"


def source_routes(service: ChatService) -> APIRouter:
    """`/sources/TITLE/TURN/N`: no token, but the link's own proof."""
    router = APIRouter(prefix=PREFIX)

    def check(turn_id: str, n: int, key: str) -> None:
        if not hmac.compare_digest(key.encode(), _proof(service.access, turn_id, n).encode()):
            raise ApiError(401, "no_token", "this link was not made by this service, or before it got another token")

    @router.get("/{title}/{turn_id}/{n}")
    async def source(turn_id: str, n: int, key: str = "") -> Response:
        check(turn_id, n, key)
        events = await events_of(service, turn_id)
        return Response(_page(events, n, key), media_type="text/html; charset=utf-8")

    @router.get("/{title}/{turn_id}/{n}/file")
    async def document(turn_id: str, n: int, key: str = "") -> Response:
        check(turn_id, n, key)
        return await document_of(service, turn_id, n)

    return router


def _proof(access: Access, turn: str, n: int) -> str:
    return hmac.new(access.token.encode(), f"source {turn} {n}".encode(), hashlib.sha256).hexdigest()[:16]


def _page(events: list[dict[str, Any]], n: int, key: str) -> str:
    """The passage with the evidence marked, as HTML. Raises ApiError where the turn found no such passage."""
    item = item_of(events, n)
    sources = [one for event in events if event["type"] == "answer" for one in event["sources"]]
    cited = next((one for one in sources if one["n"] == n and one["cited"]), None)
    question = next(event["question"] for event in events if event["type"] == "question")
    ground = f"Marked: the evidence of step {cited['evidence'] + 1}." if cited else "The answer does not rest on it."
    text = "".join(marked(item["text"], cited["spans"] if cited else ()))
    return _PAGE.read_text().format(
        n=n,
        question=escape(question),
        title=escape(item["title"] or item["id"]),
        where=_document(item["file"], n, key) if "file" in item else _address(item["url"]),
        text=text,
        ground=ground,
    )


def _document(file: dict[str, Any], n: int, key: str) -> str:
    page = f"#page={file['page']}" if file["page"] else ""
    return f'<p><a href="{n}/file?key={key}{page}">{escape(file["name"])}</a></p>'


def _address(url: str | None) -> str:
    if url is None:
        return ""
    if not url.startswith(("http://", "https://")):
        return f'<p class="quiet">{escape(url)}</p>'
    return f'<p><a href="{escape(url)}" target="_blank" rel="noopener noreferrer">{escape(url)}</a></p>'


def marked(text: str, spans: Iterable[tuple[int, int]]) -> Iterable[str]:
    """The text as HTML, its spans marked. They are in order and apart."""
    place = 0
    for start, end in spans:
        yield f"{escape(text[place:start])}<mark>{escape(text[start:end])}</mark>"
        place = end
    yield escape(text[place:])
