"""An MCP server by hand, which says what a script has it say: `python mcp_raw.py SCRIPT`, by stdio.

SCRIPT is JSON: `tools` (listed two a page), `results` by tool's name, `noise` (lines of its log on standard output),
`cursor` (the one of every page), `ends` (whether it ends after a call), `lines` (`scripted_line`, by method or tool's
name). Tool `die` ends it, `key` says a variable,
`starts` how often it was started.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

PAGE = 2


def reply(script: dict[str, Any], method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The result of a request."""
    if method == "initialize":
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                "serverInfo": {"name": "raw", "version": "1"}}  # fmt: skip
    if method == "tools/list":
        cursor = str(params.get("cursor"))
        start = int(cursor) if cursor.isdecimal() else 0
        page = {"tools": script["tools"][start : start + PAGE]}
        more = start + PAGE < len(script["tools"])
        return page | ({"nextCursor": script.get("cursor", str(start + PAGE))} if more else {})
    name = params["name"]
    if name in script.get("results", {}):
        return script["results"][name]
    text = os.environ.get("DESK_KEY", "(not set)") if name == "key" else script["starts"]
    return {"content": [{"type": "text", "text": text}]}


def scripted_line(line: Any, id: Any) -> str:
    """What is said in a reply's place: a text in which ID stands for the request's id and LINE for a usual message, or
    what is otherwise in a message.
    """
    if not isinstance(line, str):
        said = json.dumps({"jsonrpc": "2.0", "id": id, **line})
        return said.replace('"id": 0.0', f'"id": {id}.0')
    usual = {"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": "2 rows found"}]}}
    return line.replace("LINE", json.dumps(usual)).replace("ID", str(id))


def main(file: Path) -> None:
    """Answers until the end of standard input."""
    starts = file.with_suffix(".starts")
    with starts.open("a") as log:
        log.write("x")
    script = json.loads(file.read_text()) | {"starts": str(len(starts.read_text()))}
    for line in script.get("noise", ()):
        sys.stdout.write(line + "\n")
    for line in sys.stdin:
        request = json.loads(line)
        if request.get("params", {}).get("name") == "die":
            os._exit(3)
        known = request["method"] in ("initialize", "tools/list", "tools/call")
        error = {"error": {"code": -32601, "message": "no such method"}}
        told = {"result": reply(script, request["method"], request.get("params", {}))} if known else error
        if "id" in request:
            name = request.get("params", {}).get("name", request["method"])
            line = script.get("lines", {}).get(name)
            usual = json.dumps({"jsonrpc": "2.0", "id": request["id"], **told})
            sys.stdout.write((usual if line is None else scripted_line(line, request["id"])) + "\n")
            sys.stdout.flush()
        if request["method"] == "tools/call" and script.get("ends"):
            os._exit(0)  # at once: Python 3.13 takes a while to end, and what it is sent meanwhile may have been read


if __name__ == "__main__":
    main(Path(sys.argv[1]))
