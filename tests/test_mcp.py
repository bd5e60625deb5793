"""MCP servers as they are in the world: the official package's, and a foreign one by hand that says odd things, ends,
and comes back.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from apps.commands import main
from indexes import open_retriever
from indexes.tools.mcp_reading import put_right, texts_of
from steprag.engines.launch import free_port
from steprag.errors import ConfigError, RetrieverError
from steprag.types import Passage
from tests.fakes import listening
from tests.mcp_raw import reply, scripted_line
from tests.tool_parts import DESK, asked, texts, tools_file

RAW = str(Path(__file__).with_name("mcp_raw.py"))


@pytest.fixture(scope="module")
def desk_url() -> Iterator[str]:
    """The server over HTTP."""
    port = free_port("127.0.0.1")
    process = subprocess.Popen([*DESK, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}/mcp"
    try:
        for _ in range(200):
            try:
                urllib.request.urlopen(url, timeout=1)
            except urllib.error.HTTPError:
                break
            except OSError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


@pytest.mark.parametrize("way", ["stdio", "http"])
def test_tools_of_a_real_mcp_server(tmp_path: Path, way: str, desk_url: str) -> None:
    mcp = {"command": DESK} if way == "stdio" else {"url": desk_url}
    only = ["add", "poem", "fail", "sleep", "picture", "table"]
    file = tools_file(tmp_path, desk={"mcp": mcp, "only": only, "seconds": 2, "chars": 60})
    three, poem, failed, picture, table, late, again = asked(
        file, 'desk.add: {"a": 1, "b": 2}', "desk.poem: rain", "desk.fail: it rains", "desk.picture: {}",
        "desk.table: {}", "desk.sleep: {}", 'desk.add: {"a": 1, "b": 2}',
    )  # fmt: skip
    assert [(p.id.partition("/")[0], p.title, p.text) for p in three if isinstance(p, Passage)] == [
        ("desk.add", "desk.add", "3")]  # fmt: skip
    assert [len(text) for text in texts(poem)] == [60]
    (error,) = [p for p in failed if isinstance(p, Passage)]
    assert error.title == "desk.fail (error)"
    assert "fail" in error.text
    assert texts(picture) == ["1 image/png, not shown"]
    assert [json.loads(text) for text in texts(table)] == [{"lek": 100}]
    assert "said nothing within 2 s" in str(late)
    assert again == three


@pytest.mark.parametrize("way", ["stdio", "http"])
def test_a_reply_without_end_costs_a_message_at_most(tmp_path: Path, way: str, desk_url: str) -> None:
    mcp = {"command": DESK} if way == "stdio" else {"url": desk_url}
    file = tools_file(tmp_path, desk={"mcp": mcp, "only": ["flood", "add"], "seconds": 20})
    three, flooded = asked(file, 'desk.add: {"a": 1, "b": 2}', "desk.flood: {}")
    assert texts(three) == ["3"]
    assert "tool flood" in str(flooded) or "tool desk.flood" in str(flooded)


@pytest.mark.parametrize(
    ("written", "shown"), [("echo no key is set >&2", "no key is set"), (r"printf 'no caf\351' >&2", "no caf\ufffd")]
)
def test_a_server_that_does_not_start_says_why(tmp_path: Path, written: str, shown: str) -> None:
    """What it wrote need not be UTF-8."""
    file = tools_file(tmp_path, desk={"mcp": {"command": ["sh", "-c", written]}})
    with pytest.raises(ConfigError, match=f"it wrote: {shown}"):
        open_retriever(file)


def tool(name: str, schema: Any = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": schema or {"type": "object"}, **more}


TOOLS = [tool("starts"), tool("die"), tool("key")]
SAFE = {"annotations": {"readOnlyHint": True}}


def scripted(folder: Path, entry: dict[str, Any] | None = None, **script: Any) -> Path:
    """A tools file whose server, `desk`, plays the script."""
    (folder / "script.json").write_text(json.dumps({"tools": TOOLS, **script}))
    command = [sys.executable, RAW, str(folder / "script.json")]
    return tools_file(folder, desk={"mcp": {"command": command}, "seconds": 10, **(entry or {})})


def said(file: Path, *calls: str, most: int = 5) -> list[list[str] | str]:
    """The texts that each call of the desk brings, or what its error says."""
    found = asked(file, *(f"desk.{call}: {{}}" for call in calls), most=most)
    return [one if isinstance(one, str) else texts(one) for one in found]


def block(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, **more}


WORDS = block("text", text="2 rows found")
ROWS = {"rows": [{"money": "lek"}, {"money": "sol"}]}
LINK = block("resource_link", uri="file:///a.csv", name="a", description="figures of 2024")
NOTE = {"uri": "file:///a", "mimeType": "text/plain", "text": "The lek is money."}
PDF = {"uri": "file:///a.pdf", "mimeType": "application/pdf", "blob": "eA=="}


@pytest.mark.parametrize(("result", "texts"), [
    ({"content": [block("resource", resource=NOTE)]}, ["The lek is money."]),
    ({"content": [block("resource", resource=PDF)]}, ["1 application/pdf (file:///a.pdf), not shown"]),
    ({"content": [LINK]}, ["a: figures of 2024: file:///a.csv (1 resource_link, not shown)"]),
    ({"content": [block("image", data="eA==", mimeType="image/png")]}, ["1 image/png, not shown"]),
    ({"content": [WORDS, *2 * [block("audio", data="eA==", mimeType="audio/wav")]]},
     ["2 rows found", "2 audio/wav, not shown"]),
    ({"content": [block("image", data="eA==")]}, ["1 image, not shown"]),
    ({"content": [block("video", url="x"), 5]}, ["1 video, not shown"]),
    ({"content": [block("text", text=None), block("text", text=" "), WORDS]}, ["2 rows found"]),
    ({"content": [WORDS], "structuredContent": ROWS}, [json.dumps(ROWS), "2 rows found"]),
    ({"content": [WORDS], "structuredContent": {"count": 2}}, ["2 rows found", '{"count": 2}']),
    ({"content": [block("text", text=json.dumps(ROWS, indent=2))], "structuredContent": ROWS},
     [json.dumps(ROWS, indent=2)]),
    ({"content": [block("text", text="lek"), block("text", text="sol")],
      "structuredContent": {"result": ["lek", "sol"]}}, ["lek", "sol"]),
    ({"structuredContent": {"lek": 100}}, ['{"lek": 100}']),
    ({"content": [], "structuredContent": [1, 2]}, ["[1, 2]"]),
    ({"content": "The lek."}, ["The lek."]),
    ({"content": {"type": "text", "text": "The lek."}}, ["The lek."]),
    ({"content": {"money": "lek"}}, ['{"money": "lek"}']),
    ({"content": ["The lek.", "", WORDS]}, ["The lek.", "2 rows found"]),
    ({"content": 100}, ["100"]),
    ({"content": ["lek", 100, None]}, ["lek", "100"]),
    ({"content": [{"data": "eA==", "mimeType": "image/png"}]}, ["1 image/png, not shown"]),
    ({"isError": True, "error": "no such row"}, ["no such row"]),
    ({"content": [{"money": "lek"}, {"text": "The lek."}]}, ['{"money": "lek"}', "The lek."]),
    ({"content": [block("text", text={"money": "lek"}), block("json", json=[1])]}, ['{"money": "lek"}', "[1]"]),
    ({"content": [block("text", content="The lek.")]}, ["The lek."]),
    ({"content": None, "isError": True}, ["the tool reports an error without a word"]),
    ({"content": []}, []),
])  # fmt: skip
def test_a_result_of_any_kind_is_shown_or_named(result: dict[str, Any], texts: list[str]) -> None:
    assert texts_of(result) == texts
    assert [one["text"] for one in put_right(result)["content"]] == texts


NO_NAME = {"id": None, "error": {"code": -32603, "message": "boom"}}


@pytest.mark.parametrize(("line", "told"), [
    ({"result": {"content": [block("text", text="half \ud83d")]}}, ["half \ufffd"]),
    ({"result": "The lek."}, ["The lek."]),
    ({"result": ["The lek.", WORDS]}, ["The lek.", "2 rows found"]),
    ({"result": None}, []),
    ({"result": {"output": "The lek."}}, ["The lek."]),
    ({"result": {"money": "lek", "_meta": {}}}, ['{"money": "lek"}']),
    ({"result": {"content": [WORDS]}, "error": None, "jsonrpc": None}, ["2 rows found"]),
    ({"result": {"content": [WORDS], "isError": "no"}}, ["2 rows found"]),
    ({"result": {"content": [WORDS], "isError": False}}, ["2 rows found"]),
    ({"result": {"content": [WORDS]}, "id": None}, ["2 rows found"]),
    ({"result": {"content": [WORDS]}, "id": 0.0}, ["2 rows found"]),
    ({"error": "boom"}, "boom"),
    ({"error": {"code": "E_LIMIT", "message": "boom"}}, "E_LIMIT: boom"),
    ({"error": {"code": "-32000", "message": ["boom"]}}, '["boom"]'),
    ({"error": {}}, "{}"),
    (NO_NAME, "boom"),
    ("[LINE]", ["2 rows found"]),
    ('{"jsonrpc": "2.0", "id": ID, "result": {"content": "The', "its message is no JSON: Unterminated string"),
])  # fmt: skip
@pytest.mark.parametrize("way", ["stdio", "http", "events"])
def test_a_message_that_is_not_to_the_letter_is_read_or_fails_its_call_at_once(
    tmp_path: Path, line: object, told: Any, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing waits for the time-out, and the connection lasts. An event's message takes several lines."""
    began = time.monotonic()
    if way == "stdio":
        got, after = said(scripted(tmp_path, {"seconds": 60}, lines={"key": line}), "key", "starts")
    else:
        form = Raw if way == "http" else event
        shop = Shop(lambda request: (200, form(scripted_line(line, request["id"]))), tools=TOOLS)
        with remote(tmp_path, shop) as file:
            got, after = said(file, "key", "starts")
    assert time.monotonic() - began < 30
    assert after == ["1"], "the connection lasts"
    assert got == told if isinstance(told, list) else told in got and "\n" not in got
    assert not caplog.records


@pytest.mark.parametrize("first", [
    {}, None, "hello", {"serverInfo": {"name": "x", "version": 1}}, {"protocolVersion": 2, "capabilities": None},
    {"protocolVersion": "2025-06-18", "capabilities": {"tools": True}, "serverInfo": None},
])  # fmt: skip
def test_a_server_that_says_little_of_itself_is_one(tmp_path: Path, first: object) -> None:
    assert said(scripted(tmp_path, lines={"initialize": {"result": first}}), "starts") == [["1"]]


def test_results_that_are_not_to_the_letter_are_read(tmp_path: Path) -> None:
    results = {"starts": {"content": [block("image", data="eA==")]}, "key": {"structuredContent": [1]}}
    told = tool("key", outputSchema={"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})
    file = scripted(tmp_path, tools=[tool("starts"), told], results=results)
    assert said(file, "starts", "key") == [["1 image, not shown"], ["[1]"]]


ARRAY = {"type": "object", "properties": {"all": {"type": "array"}}, "required": ["all"]}


@pytest.mark.parametrize(("script", "names", "warned"), [
    ({"tools": [tool(f"t{n}") for n in range(5)]}, ["t0", "t1", "t2", "t3", "t4"], ""),
    ({"tools": [tool(f"t{n}") for n in range(5)], "cursor": "again"}, ["t0", "t1"], ""),
    ({"tools": [tool(f"t{n}") for n in range(300)]}, [f"t{n}" for n in range(200)], "the rest is not read"),
    ({"tools": [tool("deep", ARRAY), tool("a b"), tool("ok")]}, ["ok"], "`only` under tools.desk names the tools"),
    ({"tools": [{"name": "bare"}, {"name": "null", "inputSchema": None, "description": None}, 5, {}]},
     ["bare", "null"], ""),
    ({"tools": [{"name": "a", "input_schema": ARRAY}, {"name": "b", "parameters": json.dumps(ARRAY)}, tool("ok")]},
     ["ok"], "argument 'all' is of type 'array'"),
    ({"tools": [tool("ok", annotations=5, outputSchema={})]}, ["ok"], ""),
    ({"lines": {"tools/list": {"result": [tool("one"), tool("two")]}}}, ["one", "two"], ""),
    ({"lines": {"tools/list": {"result": {"tools": {"one": {"description": "x"}}, "nextCursor": None}}}}, ["one"],
     ""),
    ({"tools": TOOLS, "noise": ["Server is up", '{"level": 30}', ""]}, ["starts", "die", "key"], "skipped 3 lines"),
])  # fmt: skip
def test_a_listing_is_read_whole_and_what_is_no_tool_left_out(
    tmp_path: Path, script: dict[str, Any], names: list[str], warned: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tools", "list", "--index", str(scripted(tmp_path, **script))]) == 0
    out, err = capsys.readouterr()
    assert [line.partition(":")[0].removeprefix("desk.") for line in out.splitlines()] == names
    assert warned in err
    assert bool(warned) == bool(err.partition("next: ")[0])


def test_a_tool_that_only_names_must_be_one(tmp_path: Path) -> None:
    for only, why in ((["deep"], "argument 'all' is of type 'array'"), (["x"], "has no tool x")):
        with pytest.raises(ConfigError, match=why):
            open_retriever(scripted(tmp_path, {"only": only}, tools=[tool("deep", ARRAY), tool("ok")]))


# --- keys -------------------------------------------------------------------------------------------------------------
KEY = "a-key-that-is-long"


def test_a_command_gets_the_variables_that_are_named_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESK_KEY", KEY)
    file = scripted(tmp_path)
    assert said(file, "key") == [["(not set)"]]
    print_before = open_retriever(file).fingerprint
    command = json.loads(file.read_text())["tools"]["desk"]["mcp"]["command"]
    file = scripted(tmp_path, {"mcp": {"command": command, "env": ["DESK_KEY"]}})
    assert said(file, "key") == [[KEY]]
    assert open_retriever(file).fingerprint == print_before


@pytest.mark.parametrize(("mcp", "why"), [
    ({"command": ["x"], "env": ["NOT_THERE"]}, "tools.desk.mcp.env: NOT_THERE is not set; export NOT_THERE="),
    ({"command": ["x"], "env": ["A=sk-1"]}, "tools.desk.mcp.env names variables of the environment"),
    ({"url": "http://x/mcp", "headers": {"Authorization": "Bearer sk-1"}}, "mcp.headers names variables"),
    ({"url": "http://x/mcp", "headers": {"X": "TWO_LINES"}}, "TWO_LINES holds what is no line of text"),
    ({"url": "http://x/mcp", "env": ["A"]}, "tools.desk.mcp: env is for a command"),
    ({"command": ["x"], "headers": {}}, "tools.desk.mcp: headers is for a url"),
])  # fmt: skip
def test_keys_come_from_the_environment_or_are_asked_for(
    tmp_path: Path, mcp: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWO_LINES", "sk-1\nX-Other: 1")
    with pytest.raises(ConfigError, match=why) as refused:
        open_retriever(tools_file(tmp_path, desk={"mcp": mcp}))
    assert "sk-1" not in str(refused.value)


# --- servers that refuse, end and come back --------------------------------------------------------------------------
Answer = Callable[[Mapping[str, str], dict[str, Any]], tuple[int, object] | None]


@contextmanager
def remote(folder: Path, answer: Answer, port: int = 0, **more: Any) -> Iterator[Path]:
    """A tools file with a server over HTTP; `answer` gives status and body, or None: the connection breaks off."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told = answer(dict(self.headers), json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            if told is None:
                self.close_connection = True
                return
            text = told[1] if isinstance(told[1], str) else json.dumps(told[1])
            data = text.encode()
            self.send_response(told[0])
            self.send_header("Content-Type", KINDS.get(type(told[1]), "application/json"))
            self.send_header("mcp-session-id", "any")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with listening(Handler, port=port) as address:
        yield tools_file(folder, desk={"mcp": {"url": f"{address}/mcp?key=never-shown", **more}, "seconds": 10})


class Raw(str):
    """A body as it is, said to be JSON."""


class Events(str):
    """A body of events."""


KINDS = {str: "text/plain", Events: "text/event-stream"}


def event(message: str) -> Events:
    """A message as an event, with a line of data up to each comma."""
    return Events("event: message\ndata: " + message.replace(", ", ",\ndata: ") + "\n\n")


Fault = tuple[int, object] | None | Callable[[Any], tuple[int, object]]


class Shop:
    """A server over HTTP that plays `faults` in place of its next calls' results, then works. A fault may be made of
    the request.
    """

    def __init__(self, *faults: Fault, tools: list[dict[str, Any]] = TOOLS) -> None:
        self.faults, self.tools, self.starts, self.calls = [*faults], tools, 0, 0

    def __call__(self, headers: Mapping[str, str], request: dict[str, Any]) -> tuple[int, object] | None:
        method = request["method"]
        if method not in ("initialize", "tools/list", "tools/call"):
            return (405 if "id" in request else 202), ""
        self.starts += method == "initialize"
        self.calls += method == "tools/call"
        if method == "tools/call" and self.faults:
            fault = self.faults.pop(0)
            return fault(request) if callable(fault) else fault
        script = {"tools": self.tools, "starts": str(self.starts)}
        return 200, {"jsonrpc": "2.0", "id": request["id"], "result": reply(script, method, request.get("params", {}))}


@pytest.mark.parametrize(("status", "body", "why"), [
    (401, {"error": "invalid_token"}, "HTTP 401 Unauthorized; give its key by headers: {Authorization"),
    (403, "no", "HTTP 403 Forbidden; its key may not do this"),
    (404, "no", "HTTP 404 Not Found; no MCP server is at this address"),
    (405, {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "Method not allowed."}},
     "HTTP 405 Method Not Allowed: Method not allowed.; an address that ends in /sse is of the old protocol"),
    (502, "<html>", "HTTP 502 Bad Gateway"),
    (401, {"error": {"code": 1, "message": f"not {KEY}"}}, r"HTTP 401 Unauthorized: not \[key\]"),
])  # fmt: skip
def test_a_refusal_names_its_status_and_no_key(
    tmp_path: Path, status: int, body: object, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESK_KEY", f"Bearer {KEY}")
    sent: set[str | None] = set()

    def answer(headers: Mapping[str, str], request: dict[str, Any]) -> tuple[int, object]:
        sent.add(headers.get("X-Auth"))
        return status, body

    with (
        remote(tmp_path, answer, headers={"X-Auth": "DESK_KEY"}) as file,
        pytest.raises(ConfigError, match=why) as refused,
    ):
        open_retriever(file)
    assert sent == {f"Bearer {KEY}"}
    assert not {KEY, "never-shown"} & set(re.split(r"[^\w-]+", str(refused.value)))


LOST = "it may have been carried out, so it is not made again"
FORGOTTEN = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "No valid session ID provided"}}
BAD = {"jsonrpc": "2.0", "id": None, "error": {"code": -32602, "message": "text is too short"}}


@pytest.mark.parametrize(("fault", "hints", "first", "starts", "calls"), [
    ((404, "gone"), {}, ["2"], 2, 3),
    ((400, FORGOTTEN), {}, ["2"], 2, 3),
    ((200, {"content": [WORDS]}), {}, ["2 rows found"], 1, 2),
    ((200, [{"jsonrpc": "2.0", "method": "x"}, {"result": {"content": [WORDS]}}]), {}, ["2 rows found"], 1, 2),
    ((200, json.dumps({"jsonrpc": "2.0", "id": 99, "result": {"content": "lek"}})), {}, ["lek"], 1, 2),
    ((200, []), {}, "Failed to parse JSON response (no message of the protocol)", 1, 2),
    (None, {}, LOST, 1, 2),
    (None, SAFE, ["2"], 2, 3),
    ((500, "oh"), SAFE, "HTTP 500 Internal Server Error", 1, 2),
    ((400, BAD), {}, ["HTTP 400 Bad Request: text is too short"], 1, 2),
    ((200, "{"), {}, "Unexpected content type", 1, 2),
])  # fmt: skip
def test_a_call_over_http_is_made_again_where_it_did_not_reach_the_tool(
    tmp_path: Path, fault: tuple[int, object] | None, hints: dict[str, Any], first: Any, starts: int, calls: int
) -> None:
    shop = Shop(fault, tools=[tool("starts", **hints)])
    with remote(tmp_path, shop) as file:
        one, other = said(file, "starts", "starts")
    assert one == first if isinstance(first, list) else first in one
    assert other == [str(starts)], "the next call finds the server"
    assert (shop.starts, shop.calls) == (starts, calls)


def test_a_server_that_is_away_is_found_when_it_is_back(tmp_path: Path) -> None:
    shop = Shop()
    with remote(tmp_path, shop) as file:
        box = open_retriever(file)
    port = int(re.findall(r":(\d+)/mcp", file.read_text())[0])

    async def ask() -> str:
        async with aclosing(box):
            with pytest.raises(RetrieverError, match="ConnectError"):
                await box.search("desk.starts: {}", 1)
            with remote(tmp_path, shop, port):
                return (await box.search("desk.starts: {}", 1))[0].text

    assert asyncio.run(ask()) == "1"


@pytest.mark.parametrize(("hints", "starts"), [({}, "2"), (SAFE, "3")])
def test_a_command_that_dies_is_started_again(tmp_path: Path, hints: dict[str, Any], starts: str) -> None:
    file = scripted(tmp_path, tools=[tool("starts"), tool("die", **hints)])
    first, died, after = said(file, "starts", "die", "starts")
    assert first == ["1"]
    assert LOST in died
    assert after == [starts], "a tool that changes nothing is asked twice"


def test_a_call_that_a_dead_command_did_not_read_is_made_again(tmp_path: Path) -> None:
    """It ends after each reply, so the next call finds it dying or dead."""
    assert said(scripted(tmp_path, ends=True), "starts", "starts", "starts") == [["1"], ["2"], ["3"]]


def test_a_server_that_comes_back_with_other_tools_is_refused(tmp_path: Path) -> None:
    other = [tool("starts", {"properties": {"text": {"type": "string"}}}), *TOOLS[1:]]

    async def ask() -> list[str]:
        async with aclosing(open_retriever(scripted(tmp_path))) as box:
            errors = []
            for tools in (other, other, TOOLS):
                with pytest.raises(RetrieverError) as died:
                    await box.search("desk.die: {}", 1)
                errors.append(str(died.value))
                scripted(tmp_path, tools=tools)
            return [*errors, (await box.search("desk.starts: {}", 1))[0].text]

    died, changed, again, found = asyncio.run(ask())
    assert LOST in died
    assert "came back with other tools; start the run again" in changed
    assert changed == again
    assert found == "4"
