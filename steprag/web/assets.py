"""The files of a web page: read once at the start, served under fixed names. No request names a path."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, HTTPException, Request, Response

VENDOR = Path(__file__).parent / "vendor"
"""Front-end files of others; SOURCES.md there says which."""
SHARED = Path(__file__).parent / "page"
"""Our own front-end files that every page has among its own: the theme, the import of the libraries, requests."""
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
"""Endings that are served, and their content types."""


@dataclass(frozen=True)
class Asset:
    """A file's bytes, content type and ETag."""

    body: bytes
    kind: str
    etag: str


def read_assets(folder: Path) -> dict[str, Asset]:
    """Every file below `folder` that a page may load, by its path there."""
    assets = {}
    for file in sorted(folder.rglob("*")):
        if file.suffix in KINDS:
            body = file.read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
            assets[file.relative_to(folder).as_posix()] = Asset(body, KINDS[file.suffix], etag)
    return assets


def page_file(folder: Path, name: str) -> Path:
    """The file that `/page/NAME` gives: the folder's own, else a shared one."""
    own = folder / name
    return own if own.exists() else SHARED / name


def page_routes(folder: Path) -> APIRouter:
    """`/` gives the folder's index.html, `/page/NAME` its files and the shared ones, `/vendor/NAME` those of others."""
    page, vendor = read_assets(SHARED) | read_assets(folder), read_assets(VENDOR)
    router = APIRouter()

    @router.get("/")
    async def shell(request: Request) -> Response:
        return _reply(page, "index.html", request)

    @router.get("/page/{name:path}")
    async def own(name: str, request: Request) -> Response:
        return _reply(page, name, request)

    @router.get("/vendor/{name:path}")
    async def others(name: str, request: Request) -> Response:
        return _reply(vendor, name, request)

    return router


def _reply(assets: dict[str, Asset], name: str, request: Request) -> Response:
    asset = assets.get(name)
    if asset is None:
        raise HTTPException(404, "no such file")
    headers = {"ETag": asset.etag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == asset.etag:
        return Response(status_code=304, headers=headers)
    return Response(asset.body, media_type=asset.kind, headers=headers)
