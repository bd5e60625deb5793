"""A web on this machine: a site with pages and a robots.txt, and search engines in the dialects of the real ones."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from indexes import open_retriever
from steprag.types import Passage
from tests.fakes import Replying, listening

Answer = tuple[int, dict[str, str], bytes]
HTML = {"Content-Type": "text/html; charset=utf-8"}
QUERY = "What is the capital of Albania?"
HITS = [
    {"url": "/tirana", "title": "Tirana", "snippet": "Tirana is a city."},
    {"url": "/lek", "title": "Albanian lek", "snippet": "The lek is a currency."},
]


def article(title: str, *paragraphs: str) -> bytes:
    """A page with a menu, a script and an article."""
    body = "".join(f"<p>{each}</p>" for each in paragraphs)
    return (
        f"<html><head><title>{title}</title><script>var stolen = 1;</script></head><body><nav>Home Shop</nav>"
        f"<article><h1>{title}</h1>{body}</article></body></html>"
    ).encode()


TIRANA = article(
    "Tirana",
    "Tirana is the capital and largest city of Albania. It lies in the centre of the country, west of the mountains.",
    "Its mayor receives guests in the town hall, which stands at the main square of the city since the last century.",
)
LEK = article("Albanian lek", "Prices in Albania are quoted in the lek, which the Bank of Albania issues since 1926.")


@dataclass
class Web:
    """What the machine answers, and what it was asked. `hits`: what the engines find; a path is one of this site.

    `pages`: status, headers and body by path, or what sends them itself. `engine`: an answer that stands in for every
    reply of the engines. `plan`: how many seconds two searches have to lie apart, and the headers of the 429 that a
    search gets that comes sooner. `folder` and `encoder`: of web files that search here.
    """

    address: str = ""
    hits: list[dict[str, str]] = field(default_factory=lambda: [dict(hit) for hit in HITS])
    pages: dict[str, Answer | Callable[[BaseHTTPRequestHandler], None]] = field(
        default_factory=lambda: {"/tirana": (200, HTML, TIRANA), "/lek": (200, HTML, LEK)}
    )
    engine: list[Answer] = field(default_factory=list)
    plan: tuple[float, dict[str, str]] = (0.0, {})
    asked: list[str] = field(default_factory=list)
    sent: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    folder: Path = Path()
    encoder: Path | None = None

    _searched: float = 0.0

    @property
    def place(self) -> str:
        """host:port"""
        return urlsplit(self.address).netloc

    def file(self, **keys: Any) -> Path:
        """A web file that searches here."""
        return web_file(self.folder, self, keys.pop("encoder", self.encoder), **keys)

    def search(self, *queries: str, top_k: int = 5, **keys: Any) -> list[tuple[Passage, ...]]:
        """What each query brings by such a file, one after the other."""
        return search(self.file(**keys), *queries, top_k=top_k)

    def reply(self, handler: BaseHTTPRequestHandler, body: bytes) -> Answer | Callable[[BaseHTTPRequestHandler], None]:
        path = urlsplit(handler.path).path
        self.asked.append(path)
        self.headers.append(dict(handler.headers))
        if path in ("/search", "/res/v1/web/search"):
            given = json.loads(body) if body else {k: v[0] for k, v in parse_qs(urlsplit(handler.path).query).items()}
            self.sent.append(given)
            soon, self._searched = time.monotonic() - self._searched < self.plan[0], time.monotonic()
            if soon:
                return 429, self.plan[1], b'{"error": {"code": "RATE_LIMITED"}}'
            return self.engine.pop(0) if self.engine else self._found(handler, path)
        return self.pages.get(path, (404, HTML, b"nothing here"))

    def _found(self, handler: BaseHTTPRequestHandler, path: str) -> Answer:
        """In the dialect that the request is in; a wrong key is refused."""
        hits = [
            {**hit, "url": self.address + hit["url"] if hit["url"].startswith("/") else hit["url"]} for hit in self.hits
        ]
        if path == "/res/v1/web/search":
            key, rows = handler.headers.get("X-Subscription-Token"), _renamed(hits, "url", "description")
            said: dict[str, Any] = {"web": {"results": rows}} if hits else {"type": "search"}
        elif handler.headers.get("X-API-KEY"):
            key, said = handler.headers["X-API-KEY"], {"organic": _renamed(hits, "link", "snippet")}
        elif handler.headers.get("Authorization"):
            key = handler.headers["Authorization"].removeprefix("Bearer ")
            said = {"results": _renamed(hits, "url", "content")}
        else:
            key, said = "right", {"results": _renamed(hits, "url", "content"), "unresponsive_engines": []}
        status = 200 if key == "right" else 401
        return status, {"Content-Type": "application/json"}, json.dumps(said).encode()


def _renamed(hits: list[dict[str, str]], url: str, snippet: str) -> list[dict[str, str]]:
    return [{url: hit["url"], "title": hit["title"], snippet: hit["snippet"]} for hit in hits]


@contextmanager
def web() -> Iterator[Web]:
    """A running web of one address."""
    here = Web()

    class Handler(Replying):
        def do_GET(self) -> None:
            answer = here.reply(self, self.given())
            if callable(answer):
                answer(self)
            else:
                status, headers, content = answer
                self.reply(content, status, **headers)

        do_POST = do_GET

    with listening(Handler) as address:
        here.address = address
        yield here


def redirect(to: str) -> Answer:
    """A redirect."""
    return 302, {"Location": to}, b""


def bomb() -> Answer:
    """160 MB in a third of one."""
    return 200, {**HTML, "Content-Encoding": "gzip"}, gzip.compress(b"<p>Tirana</p>" * 12_000_000, 9)


def drip(handler: BaseHTTPRequestHandler) -> None:
    """A byte now and then, for ever."""
    handler.send_response(200)
    handler.send_header("Content-Type", "text/html")
    handler.end_headers()
    try:
        for _ in range(600):
            handler.wfile.write(b"<p>")
            handler.wfile.flush()
            time.sleep(0.1)
    except OSError:
        return


def web_file(folder: Path, here: Web, encoder: Path | str | None, **keys: Any) -> Path:
    """A web file that searches here."""
    file = folder / "web.yaml"
    usual = {"provider": "searxng", "base_url": here.address, "allow": [here.place]}
    file.write_text(json.dumps({"web": {**usual, "encoder": encoder and str(encoder), **keys}}))
    return file


def search(file: Path, *queries: str, top_k: int = 5) -> list[tuple[Passage, ...]]:
    """What each query brings, one after the other."""

    async def ask() -> list[tuple[Passage, ...]]:
        async with aclosing(open_retriever(file)) as retriever:
            await retriever.ready()
            return [await retriever.search(query, top_k) for query in queries]

    return asyncio.run(ask())


def texts(found: Sequence[Passage]) -> str:
    return " ".join(passage.text for passage in found)
