"""Pages: what is fetched, how it is read, and what stands in for what cannot be. No request reaches a private address;
pages cost bounded bytes and time.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import psutil
import pytest
from aiohttp import ClientConnectorError
from aiohttp.abc import AbstractResolver, ResolveResult

from indexes.web import extraction
from indexes.web.addresses import ForbiddenAddress, GuardedResolver, checked, is_open, places
from indexes.web.config import WebConfig
from indexes.web.extraction import Extractor, Page
from indexes.web.fetching import Fetcher, FetchError
from indexes.web.pages import Pages
from indexes.web.providers import WebResult
from indexes.web.retriever import likely, pieces, plain
from indexes.web.snapshot import SeenPage
from steprag.agent.retriever import url_of
from tests.web_site import HITS, HTML, QUERY, TIRANA, Web, bomb, drip, redirect, texts, web

LOST: dict[str, Any] = {
    "gone": (410, HTML, TIRANA),
    "no-page": (200, {"Content-Type": "application/pdf"}, TIRANA),
    "no-text": (200, HTML, b"<html><script>let a = 1</script></html>"),
    "other-encoding": (200, {**HTML, "Content-Encoding": "br"}, TIRANA),
    "damaged": (200, {**HTML, "Content-Encoding": "gzip"}, TIRANA),
    "drip": drip,
}


def test_the_snippet_stands_in_for_a_page_that_cannot_be_read(here: Web) -> None:
    here.pages |= {f"/{name}": answer for name, answer in LOST.items()}
    here.hits = [*HITS, *({"url": f"/{name}", "title": name, "snippet": f"It is {name}."} for name in LOST)]
    (found,) = here.search(QUERY, top_k=20, page_seconds=3.0)
    by_page = {(url_of(p.id) or "").rpartition("/")[2]: p.text for p in found}
    assert {name: by_page[name] for name in LOST} == {name: f"It is {name}." for name in LOST}
    assert "largest city" in by_page["tirana"]
    assert {f"/{name}" for name in LOST} <= set(here.asked)


@pytest.mark.parametrize(("rules", "read"), [
    ((200, {}, b"User-agent: *\nDisallow: /tirana"), False),
    ((200, {}, b"User-agent: steprag\nDisallow: /\n\nUser-agent: *\nAllow: /"), False),
    ((503, {}, b""), False),
    (drip, False),
    ((404, HTML, b"User-agent: *\nDisallow: /"), True),
])  # fmt: skip
def test_a_page_that_robots_txt_forbids_is_not_fetched(rules: Any, read: bool, here: Web) -> None:
    here.pages["/robots.txt"] = rules
    (found,) = here.search(QUERY, page_seconds=4.0)
    assert ("Tirana is a city." in {p.text for p in found}, "largest city" in texts(found)) == (not read, read)
    assert here.asked.count("/robots.txt") == 1
    assert ("/tirana" in here.asked) == read


CYRILLIC = "Столица Албании - Тирана, крупнейший город страны, расположенный в центре между горами и морем."
CHARSETS = [
    ("windows-1251", "", "cp1251"),
    ("", '<meta http-equiv="Content-Type" content="text/html; charset=koi8-r">', "koi8-r"),
    ("zlib", "", "utf-8"),
    ("'nowhere'", "<meta charset='utf-16'>", "utf-16"),
    ("", "", "utf-8-sig"),
    ("", "", "utf-8"),
    ("utf-8", "", "cp1251"),
    ("", "<meta charset=utf-8>", "koi8-r"),
]


def test_pages_are_read_in_their_charset_by_a_process_that_can_start_no_other() -> None:
    async def read() -> None:
        async with aclosing(Extractor(20.0, 512)) as extractor:
            for charset, before, encoding in CHARSETS:
                page = f"<html><head>{before}<title>Тирана</title></head><body><p>{CYRILLIC}</p></body></html>"
                found = await extractor.extract(page.encode(encoding), charset, "http://a.org/")
                assert found is not None
                assert CYRILLIC in found.text, (charset, before, encoding)
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


def test_a_page_that_needs_more_memory_than_it_may_have_falls_back_to_the_snippet(here: Web) -> None:
    (found,) = here.search(QUERY, extract_mb=20)
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


# --- addresses and bounds ---------------------------------------------------------------------------------------------
OPEN = ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
CLOSED = [
    *("127.0.0.1", "127.1.2.3", "10.0.0.1", "172.16.0.1", "192.168.1.1", "0.0.0.0", "255.255.255.255"),
    *("169.254.169.254", "100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "198.18.0.1", "240.0.0.1"),
    *("192.0.2.1", "192.88.99.1", "224.0.0.1", "239.255.255.250"),
    *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "::7f00:1", "2002:7f00:1::", "64:ff9b::7f00:1", "64:ff9b:1::1"),
    *("2001:0:4136:e378::1", "3fff::1", "5f00::1", "4000::1", "localhost", "", "1.1.1.1.1"),
]


@pytest.mark.parametrize("address", [*OPEN, *CLOSED])
def test_the_public_internet_is_open_and_all_else_is_closed(address: str) -> None:
    assert is_open(address) == (address in OPEN)


@pytest.mark.parametrize("url", [
    *("http://127.0.0.1/", "http://[::1]/", "http://[::ffff:7f00:1]/", "http://169.254.169.254/latest/meta-data/"),
    *("http://2130706433/", "http://127.1/", "http://0x7f.1/", "http://0177.0.0.1/", "http://0x7f000001/"),
    *("http://①②⑦.⓪.⓪.①/", "http://127。0。0。1/", "http://127.0.0.1./", "http://[fe80::1%25eth0]/"),
    *("http://a.org:8080/", "http://a.org:22/", "ftp://a.org/", "file:///etc/passwd", "gopher://a.org/"),
    *("http://user@a.org/", "http://a.org\\@127.0.0.1/", "http:///x", "//a.org/", "javascript:alert(1)", ""),
    *("http://a.org:99999/", "http://[::1/"),
])  # fmt: skip
def test_an_address_that_is_not_the_webs_is_refused(url: str) -> None:
    with pytest.raises(ForbiddenAddress):
        checked(url, places(["b.org:8080"]))


def test_exact_places_may_be_allowed() -> None:
    allowed = places(["127.0.0.1:8080", "[::1]:81", "Intra.Net:8443"])
    for url in ("http://127.0.0.1:8080/x", "http://[::1]:81/", "https://intra.net:8443/", "http://8.8.8.8/"):
        assert str(checked(url, allowed)) == url
    for url in ("http://127.0.0.1/", "http://127.0.0.1:8081/", "http://127.0.0.2:8080/", "http://[::1]/"):
        with pytest.raises(ForbiddenAddress):
            checked(url, allowed)


class Names(AbstractResolver):
    """A name server: the answers of each name in turn, the last one from then on."""

    def __init__(self, **answers: list[tuple[str, int]]) -> None:
        self._answers, self.asked = answers, []  # type: ignore[var-annotated]

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        del port, family
        self.asked.append(host)
        answers = self._answers[host.partition(".")[0]]
        address, to = answers.pop(0) if len(answers) > 1 else answers[0]
        return [ResolveResult(hostname=host, host=address, port=to, family=socket.AF_INET, proto=0, flags=0)]

    async def close(self) -> None:
        pass


@pytest.fixture
def trap() -> Iterator[Web]:
    """A server on this machine that nothing may reach."""
    with web() as running:
        running.pages = dict.fromkeys(("/", "/tirana", "/secret"), (200, HTML, TIRANA))
        yield running
        assert running.asked == []


@asynccontextmanager
async def fetcher(
    allow: list[str], *, most: int = 2_000_000, resolver: AbstractResolver | None = None
) -> AsyncIterator[Fetcher]:
    async with aclosing(Fetcher(places(allow), most=most, user_agent="test", resolver=resolver)) as made:
        yield made


def test_results_and_redirects_to_this_machine_are_not_followed(here: Web, trap: Web) -> None:
    port = trap.place.partition(":")[2]
    targets = [
        *(f"http://127.0.0.1:{port}/secret", f"http://localhost:{port}/secret", f"http://[::ffff:7f00:1]:{port}/"),
        *(f"http://2130706433:{port}/", f"http://127.1:{port}/", "http://169.254.169.254/latest/meta-data/"),
        *("http://127.0.0.1/", "http://localhost/", "file:///etc/passwd", "//169.254.169.254/", "http://[::1]/"),
    ]
    for place, target in enumerate(targets):
        here.pages[f"/r{place}"] = redirect(target)
    here.hits = [
        {"url": f"/r{place}", "title": "r", "snippet": f"by redirect {place}"} for place in range(len(targets))
    ]
    direct = [target for target in targets if target.startswith("http")]
    here.hits += [{"url": url, "title": "d", "snippet": f"directly {url}"} for url in direct]
    (found,) = here.search(QUERY, top_k=50, pages=20, results=30)
    assert sum(p.text.startswith("by redirect") for p in found) == len(targets)
    assert sum(p.text.startswith("directly") for p in found) >= len(direct) - 2, "all have but their snippet"
    assert {f"/r{place}" for place in range(len(targets))} <= set(here.asked)


def test_the_search_engines_own_place_is_no_page(here: Web, trap: Web) -> None:
    """A result must not reach what only the user's own search was to reach."""
    del trap
    (found,) = here.search(QUERY, allow=[])
    assert here.asked == ["/search"]
    assert {p.text for p in found} == {"Tirana is a city.", "The lek is a currency."}


def test_a_name_that_points_here_is_not_reached_however_often_it_changes_its_mind(trap: Web) -> None:
    """Nor a socket opened where every other check was passed."""
    port = int(trap.place.partition(":")[2])
    names = Names(evil=[("127.0.0.1", port)], rebinding=[("93.184.216.34", 80), ("127.0.0.1", port)])

    async def try_all() -> None:
        async with fetcher([], resolver=names) as made:
            with pytest.raises(FetchError, match=r"evil\.org has no address of the public internet"):
                await made.get("http://evil.org/secret")
            first = await GuardedResolver(names, frozenset()).resolve("rebinding.org", 80)
            assert [each["host"] for each in first] == ["93.184.216.34"], "what a check would have seen"
            with pytest.raises(FetchError, match=r"rebinding\.org has no address of the public internet"):
                await made.get("http://rebinding.org/secret")
            with pytest.raises(ClientConnectorError, match="Cannot connect"):
                await made._open().get(trap.address)

    asyncio.run(try_all())
    assert names.asked == ["evil.org", "rebinding.org", "rebinding.org"], "one look for one connection"


def test_sockets_are_opened_to_what_was_looked_up_alone() -> None:
    guarded = GuardedResolver(Names(own=[("10.0.0.7", 8080)]), places(["own.org:8080"]))
    asyncio.run(guarded.resolve("own.org", 8080))

    def opens(host: str, port: int, family: socket.AddressFamily = socket.AF_INET) -> None:
        guarded.socket_for((family, socket.SOCK_STREAM, 6, "", (host, port))).close()

    opens("93.184.216.34", 443)
    opens("10.0.0.7", 8080)
    for host, port in (("10.0.0.7", 80), ("127.0.0.1", 80), ("169.254.169.254", 80)):
        with pytest.raises(ForbiddenAddress):
            opens(host, port)
    with pytest.raises(ForbiddenAddress):
        opens("::1", 443, socket.AF_INET6)


def fetched(here: Web, path: str, *, seconds: float = 5, **given: Any) -> Any:
    async def get() -> Any:
        async with fetcher([here.place], **given) as made:
            async with asyncio.timeout(seconds):
                return await made.get(here.address + path)

    return asyncio.run(get())


def test_three_redirects_are_followed_and_no_fourth(here: Web) -> None:
    for hop in range(5):
        here.pages[f"/{hop}"] = redirect(f"/{hop + 1}")
    here.pages |= {"/5": (200, HTML, TIRANA), "/nowhere": redirect("http://[::1/"), "/drip": drip}
    assert fetched(here, "/2").body == TIRANA
    with pytest.raises(FetchError, match="more than 3 redirects"):
        fetched(here, "/1")
    with pytest.raises(FetchError, match="a redirect to no address"):
        fetched(here, "/nowhere")
    with pytest.raises(TimeoutError):  # however slowly a page comes, its time is bounded
        fetched(here, "/drip", seconds=0.5)


def test_a_page_is_cut_off_at_the_cap_before_it_is_unpacked(here: Web) -> None:
    here.pages |= {"/bomb": bomb(), "/long": (200, HTML, b"<p>x</p>" * 100_000)}
    assert len(here.pages["/bomb"][2]) < 400_000  # type: ignore[index]
    tracemalloc.start()
    assert len(fetched(here, "/bomb", most=100_000).body) == 100_000
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held < 8_000_000, "a block of it unpacks to 60 MB"
    assert len(fetched(here, "/long", most=100_000).body) == 100_000
    assert len(fetched(here, "/long").body) == 800_000


def test_no_cookie_and_no_proxy_is_used(here: Web, trap: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(variable, trap.address)
    here.pages["/tirana"] = (200, {**HTML, "Set-Cookie": "who=you; Path=/"}, TIRANA)

    port = int(here.place.partition(":")[2])
    url = f"http://own.org:{port}/tirana"

    async def twice() -> None:
        async with fetcher([f"own.org:{port}"], resolver=Names(own=[("127.0.0.1", port)])) as made:
            await made.get(url)
            await made.get(url)

    asyncio.run(twice())
    assert here.asked == ["/tirana"] * 2
    assert not any("Cookie" in headers for headers in here.headers)
