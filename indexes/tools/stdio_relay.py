"""Between an MCP server's standard output and us: `python stdio_relay.py BYTES CODE PROGRAM …`. Run as a file.

The protocol's package reads a line however long it is. The relay hands on lines of BYTES at most; a longer one ends the
server, and with it the connection. Of what the server writes to its standard error the relay's own gets the beginning.
Requests that the server did not read before it ended are answered by the error CODE: they may be made again. Messages
that the package would not decode are put right on the way (`mended`).
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import threading
from typing import IO, Any

INTERNAL_ERROR, PARSE_ERROR = -32603, -32700
ENVELOPE = {"jsonrpc", "id", "method", "result", "error"}
NO_ID = ""
"""Stands for the id of a reply that names none."""
HALVES = re.compile("[\ud800-\udfff]")
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
"""Half an emoji, which JSON can write and UTF-8 cannot; how JSON begins to write it."""
NOTICED = 0.05
"""Seconds without a request after which a server's end shows itself."""
HEARD = 16_384
"""Bytes of a server's standard error that are handed on; the rest is read and dropped, so that it never blocks."""


def main(argv: list[str]) -> int:
    most, code, command = int(argv[0]), int(argv[1]), argv[2:]
    try:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 127
    assert server.stdout is not None
    assert server.stderr is not None
    hearing = threading.Thread(target=hear, args=(server.stderr,), daemon=True)
    hearing.start()
    if not hand_on(server.stdout, most):
        server.kill()
        sys.stderr.write(f"a line of more than {most} bytes\n")
        return 1
    hearing.join(1)
    status = server.wait()
    answer_unread(code)
    os._exit(status & 0xFF)  # at once: what is written from here on nobody reads


def answer_unread(code: int) -> None:
    """Answers the requests that are left in standard input, which the server shared, and those that come while nobody
    may have noticed its end.
    """
    left = b""
    while select.select([0], [], [], NOTICED)[0] and (piece := os.read(0, 1 << 16)):
        *lines, left = (left + piece).split(b"\n")
        for line in lines:
            try:
                request = json.loads(line)
            except ValueError:  # the rest of one that the server read in part
                continue
            if "id" in request:
                error = {"code": code, "message": "the server had ended"}
                sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}) + "\n")
        sys.stdout.flush()


def hand_on(source: IO[bytes], most: int) -> bool:
    """Copies to standard output until the end, line by line; False once a line is too long."""
    left: list[bytes] = []
    while piece := os.read(source.fileno(), 1 << 16):
        *lines, rest = piece.split(b"\n")
        if lines:
            lines[0], left = b"".join([*left, lines[0]]), []
        left.append(rest)
        if max([sum(map(len, left)), *map(len, lines)]) > most:
            return False
        for line in lines:
            sys.stdout.buffer.write(mended(line) + b"\n")
        sys.stdout.buffer.flush()
    sys.stdout.buffer.write(b"".join(left))
    sys.stdout.buffer.flush()
    return True


def mended(line: bytes, id: object = None) -> bytes:
    """The line; where it is a message that the protocol's package would not decode, that message put right, and of
    several each in a line; of one that nobody can decode an error. `id`: of the request that it answers, where that is
    known.
    """
    try:
        told: Any = json.loads(line.decode("utf-8", "replace").removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        named = re.search(rb'"id"\s*:\s*(\d+|"\w+")', line) if b'"jsonrpc"' in line else None
        if named is None:  # a line of its log
            return line
        told = {
            "id": json.loads(named[1]),
            "error": {"code": PARSE_ERROR, "message": f"its message is no JSON: {error}"},
        }
    messages = [_message(one, id) for one in (told if isinstance(told, list) else [told])]
    if id is not None and isinstance(told, list):  # over HTTP one message answers
        messages = [one for one in messages if isinstance(one, dict) and "method" not in one][:1] or messages
    texts = [json.dumps(one, ensure_ascii=False) for one in messages]
    if texts == [json.dumps(told, ensure_ascii=False)] and not _HALF.search(line):
        return line
    return b"\n".join(HALVES.sub("\ufffd", text).encode() for text in texts)


def _message(told: Any, id: object) -> Any:
    """A message in the protocol's form; what is none as it is."""
    if not isinstance(told, dict) or not (told.keys() & {"jsonrpc", "id"} or id is not None):
        return told
    if id is not None and not told.keys() & ENVELOPE:
        told = {"result": told}
    message = {**told, "jsonrpc": "2.0"}
    if "method" in told or not {"result", "error"} & told.keys():
        return message if "jsonrpc" in told else told
    number = message.get("id") if id is None else id
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    message["id"] = number if isinstance(number, int | str) else NO_ID
    if told.get("error") is not None:
        return {"jsonrpc": "2.0", "id": message["id"], "error": _error(told["error"])}
    result = told.get("result")
    if not isinstance(result, dict):
        tools = isinstance(result, list) and any(isinstance(one, dict) and "inputSchema" in one for one in result)
        result = {"tools" if tools else "content": [] if result is None else result}
    return {**{key: value for key, value in message.items() if key != "error"}, "result": result}


def _error(told: Any) -> dict[str, Any]:
    """An error in the protocol's form: a number as its code, words, and what is told beside them."""
    parts = told if isinstance(told, dict) else {"message": told}
    words, code = parts.get("message", parts.get("error", told)), str(parts.get("code", ""))
    words = words if isinstance(words, str) else json.dumps(words, ensure_ascii=False)
    if re.fullmatch(r"-?\d{1,9}(\.0+)?", code):
        return {"code": int(float(code)), "message": words, "data": parts.get("data")}
    return {"code": INTERNAL_ERROR, "message": f"{code}: {words}" if code else words, "data": parts.get("data")}


def hear(source: IO[bytes]) -> None:
    """Copies the beginning of standard error, and reads the rest."""
    left = HEARD
    while piece := os.read(source.fileno(), 1 << 16):
        if left > 0:
            sys.stderr.buffer.write(piece[:left])
            sys.stderr.buffer.flush()
            left -= len(piece)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
