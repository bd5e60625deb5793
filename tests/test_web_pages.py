"""Pages: what is fetched, how it is read, and what stands in for what cannot be."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import psutil
import pytest

from indexes.web import extraction
from indexes.web.config import WebConfig
from indexes.web.extraction import Extractor, Page
from indexes.web.pages import Pages
from indexes.web.providers import WebResult
from indexes.web.retriever import likely, pieces, plain
from indexes.web.snapshot import SeenPage
from steprag.agent.retriever import url_of
from tests.web_site import HITS, HTML, QUERY, TIRANA, Web, drip, search, texts, web_file

LOST: dict[str, Any] = {
    "gone": (410, HTML, TIRANA),
    "no-page": (200, {"Content-Type": "application/pdf"}, TIRANA),
    "no-text": (200, HTML, b"<html><script>let a = 1</script></html>"),
    "other-encoding": (200, {**HTML, "Content-Encoding": "br"}, TIRANA),
    "damaged": (200, {**HTML, "Content-Encoding": "gzip"}, TIRANA),
    "drip": drip,
}


def test_the_snippet_stands_in_for_a_page_that_cannot_be_read(here: Web, encoder: Path, tmp_path: Path) -> None:
    here.pages |= {f"/{name}": answer for name, answer in LOST.items()}
    here.hits = [*HITS, *({"url": f"/{name}", "title": name, "snippet": f"It is {name}."} for name in LOST)]
    (found,) = search(web_file(tmp_path, here, encoder, page_seconds=3.0), QUERY, top_k=20)
    by_page = {(url_of(p.id) or "").rpartition("/")[2]: p.text for p in found}
    assert {name: by_page[name] for name in LOST} == {name: f"It is {name}." for name in LOST}
    assert "largest city" in by_page["tirana"]
    assert {f"/{name}" for name in LOST} <= set(here.asked)


@pytest.mark.parametrize(
    "rules",
    [
        (200, {}, b"User-agent: *\nDisallow: /tirana"),
        (200, {}, b"User-agent: steprag\nDisallow: /\n\nUser-agent: *\nAllow: /"),
        (503, {}, b""),
        drip,
    ],
)
def test_a_page_that_robots_txt_forbids_is_not_fetched(rules: Any, here: Web, encoder: Path, tmp_path: Path) -> None:
    here.pages["/robots.txt"] = rules
    (found,) = search(web_file(tmp_path, here, encoder, page_seconds=4.0), QUERY)
    assert "Tirana is a city." in {p.text for p in found}
    assert here.asked.count("/robots.txt") == 1
    assert "/tirana" not in here.asked


def test_a_place_without_robots_txt_is_open(here: Web, encoder: Path, tmp_path: Path) -> None:
    here.pages["/robots.txt"] = (404, HTML, b"User-agent: *\nDisallow: /")
    assert "largest city" in texts(search(web_file(tmp_path, here, encoder), QUERY)[0])


def test_pages_may_be_left_unread(here: Web, encoder: Path, tmp_path: Path) -> None:
    (found,) = search(web_file(tmp_path, here, encoder, pages=0), QUERY)
    assert here.asked == ["/search"]
    assert {p.text for p in found} == {"Tirana is a city.", "The lek is a currency."}


CYRILLIC = "Столица Албании - Тирана, крупнейший город страны, расположенный в центре между горами и морем."
CHARSETS = [
    ("windows-1251", "", "cp1251"),
    ("", '<meta http-equiv="Content-Type" content="text/html; charset=koi8-r">', "koi8-r"),
    ("zlib", "", "utf-8"),
    ("'nowhere'", "<meta charset='utf-16'>", "utf-16"),
    ("", "", "utf-8-sig"),
    ("", "", "utf-8"),
]


def test_pages_are_read_in_their_charset() -> None:
    async def read() -> None:
        async with aclosing(Extractor(20.0, 512)) as extractor:
            for charset, before, encoding in CHARSETS:
                page = f"<html><head>{before}<title>Тирана</title></head><body><p>{CYRILLIC}</p></body></html>"
                found = await extractor.extract(page.encode(encoding), charset, "http://a.org/")
                assert found is not None
                assert CYRILLIC in found.text, (charset, before, encoding)

    asyncio.run(read())


def test_the_process_that_reads_pages_can_start_no_other() -> None:
    async def read() -> None:
        async with aclosing(Extractor(20.0, 512)) as extractor:
            assert await extractor.extract(TIRANA, "", "http://a.org/") is not None
            readers = [one for one in psutil.Process().children() if str(extraction.WORKER) in one.cmdline()]
            assert [one.rlimit(psutil.RLIMIT_NPROC) for one in readers] == [(0, 0)]

    asyncio.run(read())


FAULTS = {
    "hangs": "import time; time.sleep(60)",
    "dies": "import os; os._exit(1)",
    "dies in mid-word": "import sys; sys.stdout.buffer.write(b'\\0\\0\\1\\0{'); sys.stdout.flush(); sys.exit()",
    "grows": "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28)); b = bytearray(1 << 30)",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_reader_that_fails_has_read_nothing_and_is_started_again(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extraction, "START_SECONDS", 0.0)

    async def read() -> None:
        command = (sys.executable, "-c", FAULTS[fault])
        async with aclosing(Extractor(0.5, 512, command)) as extractor:
            assert await extractor.extract(TIRANA, "", "http://a.org/") is None
            assert await extractor.extract(TIRANA * 1000, "", "http://a.org/") is None

    asyncio.run(read())


def test_a_page_that_needs_more_memory_than_it_may_have_falls_back_to_the_snippet(
    here: Web, encoder: Path, tmp_path: Path
) -> None:
    (found,) = search(web_file(tmp_path, here, encoder, extract_mb=20), QUERY)
    assert {p.text for p in found} == {"Tirana is a city.", "The lek is a currency."}


def test_what_is_late_is_lost_and_the_rest_is_kept(here: Web) -> None:
    here.pages["/lek"] = drip
    config = WebConfig(page_seconds=600.0, allow=[here.place])
    results = [WebResult(f"{here.address}/{name}", name, "") for name in ("lek", "tirana")]

    async def read() -> list[SeenPage]:
        async with aclosing(Pages(config, "test")) as pages:
            until = asyncio.get_running_loop().time() + 1.0
            return await pages.read(results, [None, Page("Tirana", "a city")], until)

    late, known = asyncio.run(read())
    assert (late.page, late.lost) == (None, "not there when the search had to end")
    assert known.page == Page("Tirana", "a city")
    assert "/tirana" not in here.asked


def test_text_is_cut_into_pieces_of_so_many_words() -> None:
    words = [f"w{n}" for n in range(430)]
    assert [len(piece.split()) for piece in pieces(" ".join(words), 200)] == [200, 230]
    assert [len(piece.split()) for piece in pieces(" ".join(words), 100)] == [100, 100, 100, 100, 30]
    assert [len(piece) for piece in pieces("日" * 450, 200)] == [200, 200, 50]
    assert all(len(piece) <= 60 * 10 for piece in pieces("a" * 5000, 10))
    assert list(pieces("", 10)) == []
    assert plain("a\u200bb\u00ad  c\nd\x07e\ud800") == "ab c d e?"
    assert plain("می\u200cخواهم") == "می\u200cخواهم"
    assert likely("red fox", ["a", "the fox", "a red fox", "b"], 2) == ["the fox", "a red fox"]
