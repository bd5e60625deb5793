"""Files that people add to a conversation; and the documents behind passages, opened at their page.

No request names a path: a document is that of a passage which a turn found, or a file of a conversation.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse
from starlette.requests import ClientDisconnect

from apps.chat.http.listing import TITLE
from apps.chat.http.service import ChatService, Name
from apps.chat.turns.files import ConversationFiles
from apps.chat.turns.retelling import retold
from indexes.web.extraction_worker import encoding_of
from steprag.agent.retriever import Documented, GivenFile
from steprag.errors import DataError, quoted
from steprag.extras import remedy
from steprag.web.app import ApiError, as_json

UPLOADS = "/api/files"
TEXTS = frozenset((".html", ".htm", ".xhtml", ".md", ".markdown", ".txt"))
"""Endings that a browser shows, as plain text; PDF it shows too, all others it saves."""
_BROWSERS = {"cp125": "windows-125", "cp932": "shift_jis", "cp949": "windows-949", "-sig": "", "_": "-"}
_AS_BROWSERS = re.compile("|".join(_BROWSERS))
"""Names of Python's codecs, as browsers know them."""
POLICY = "default-src 'none'; object-src 'self'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; " \
         "frame-ancestors 'none'"  # fmt: skip
"""Of a document: no script, no request; a browser's own PDF viewer wants the rest."""


def taken(service: ChatService) -> dict[str, Any] | None:
    """What may be added, for the page; None where nothing may."""
    limits, files = service.limits, service.desk.chat.files
    return {"most": limits.files, "megabytes": limits.file_megabytes, "endings": files.endings} if files else None


def unasked(service: ChatService) -> list[dict[str, Any]]:
    """Conversations with files and without a turn, as they are listed, the newest first."""
    chat = service.desk.chat
    there = chat.files.conversations() if chat.files else ()
    rows = [(id, chat.files.of(id)) for id in there if id not in chat.store.conversations] if chat.files else []
    listed = [{"id": id, "title": files[0].name[:TITLE], "turns": 0, "updated": files[-1].time, "files": len(files)}
              for id, files in rows if files]  # fmt: skip
    return sorted(listed, key=lambda row: -row["updated"])


def file_routes(service: ChatService) -> APIRouter:
    """`/api/files/C`: a conversation's files; `/api/turns/T/sources/N/file`: the document of a passage."""
    router, chat, limits = APIRouter(), service.desk.chat, service.limits

    def shelf() -> ConversationFiles:
        if chat.files is None:
            raise ApiError(404, "no_files", "this service takes no files (serve.files is 0)")
        return chat.files

    @router.post(f"{UPLOADS}/{{conversation}}", status_code=201)
    async def add(conversation: Name, name: str, request: Request) -> Response:
        named = file_name(name, (files := shelf()).endings)
        if int(request.headers.get("content-length") or 0) > limits.file_megabytes << 20:
            raise ApiError(
                413, "too_large", f"{named} has more than {limits.file_megabytes} MiB (serve.file_megabytes)"
            )
        return as_json(vars(await _taken(files, conversation, named, request)), 201)

    @router.delete(f"{UPLOADS}/{{conversation}}/{{file_id}}", status_code=204)
    async def remove(conversation: Name, file_id: Name) -> Response:
        await shelf().remove(conversation, file_id)
        return Response(status_code=204)

    @router.get(f"{UPLOADS}/{{conversation}}/{{file_id}}")
    async def opened(conversation: Name, file_id: Name) -> Response:
        return shown(shelf().path(conversation, file_id))

    @router.get("/api/turns/{turn_id}/sources/{n}/file")
    async def document(turn_id: str, n: int) -> Response:
        return await document_of(service, turn_id, n)

    return router


async def _taken(files: ConversationFiles, conversation: str, name: str, request: Request) -> GivenFile:
    """The file that is the request's body, written as it comes and then read. Raises ApiError."""
    place = files.new_place()
    try:
        with place.open("wb") as out:
            async for chunk in request.stream():
                await asyncio.to_thread(out.write, chunk)
        return await files.take(conversation, place, name)
    except ClientDisconnect:
        raise ApiError(400, "broken_off", f"{name} did not come whole") from None
    except DataError as error:
        raise ApiError(422, "unreadable", str(error)) from None
    except ModuleNotFoundError as error:
        raise ApiError(501, "not_installed", f"{name} needs {error.name}: {remedy('documents')}") from None
    finally:
        shutil.rmtree(place.parent)


def file_name(name: str, endings: Sequence[str]) -> str:
    """A file's own name, without folders and what no file's name may hold. Raises ApiError for a type not read."""
    plain = "".join(char if char.isprintable() else "_" for char in name.replace("\\", "/").rpartition("/")[2])
    stem, ending = Path(plain.strip(". ~$")).stem, Path(plain.strip()).suffix.lower()
    if ending not in endings:
        raise ApiError(422, "unreadable", f"{quoted(plain[-80:])} is of no type that is read: {', '.join(endings)}")
    return f"{stem.encode()[:160].decode(errors='ignore') or 'file'}{ending}"


async def events_of(service: ChatService, turn_id: str) -> list[dict[str, Any]]:
    """The events of a turn so far. Raises ApiError where there is none."""
    live = service.desk.live(turn_id)
    return live.events if live else await retold(service.desk.chat, service.ended(turn_id))


def item_of(events: list[dict[str, Any]], n: int) -> dict[str, Any]:
    """A turn's passage of that number. Raises ApiError where the turn found no such passage."""
    items = [item for event in events if event["type"] == "passages" for item in event["items"] if item["n"] == n]
    if not items:
        raise ApiError(404, "no_such_source", "the turn has no such passage")
    return items[0]


async def document_of(service: ChatService, turn_id: str, n: int) -> Response:
    """The document of a turn's passage. Raises ApiError."""
    item, live, chat = item_of(await events_of(service, turn_id), n), service.desk.live(turn_id), service.desk.chat
    retriever = chat.searching(live.request if live else service.ended(turn_id)).retriever
    path = None
    if isinstance(retriever, Documented):
        path = await asyncio.to_thread(retriever.document, item["id"], checked=True)
    return shown(path)


def shown(path: Path | None) -> Response:
    """A document for a browser: PDF shown, text and markup as plain text, all else saved. Raises ApiError."""
    if path is None or not path.is_file():
        raise ApiError(404, "no_document", "the document is not there any more, or was changed since it was read")
    ending, kind = path.suffix.lower(), "application/octet-stream"
    if ending in TEXTS:
        with path.open("rb") as stream:
            codec = encoding_of(stream.read(1 << 16)) or "utf-8"
        kind = f"text/plain; charset={_AS_BROWSERS.sub(lambda found: _BROWSERS[found[0]], codec)}"
    elif ending == ".pdf":
        kind = "application/pdf"
    return FileResponse(
        path, media_type=kind, filename=path.name,
        headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-store"},
        content_disposition_type="attachment" if kind == "application/octet-stream" else "inline",
    )  # fmt: skip
