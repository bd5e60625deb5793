"""Between an MCP server's standard output and us: `python stdio_relay.py BYTES CODE PROGRAM …`. Run as a file.

The protocol's package reads a line however long it is. The relay hands on lines of BYTES at most; a longer one ends the
server, and with it the connection. Of what the server writes to its standard error the relay's own gets the beginning.
Requests that the server did not read before it ended are answered by the error CODE: they may be made again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import IO

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
    """Answers the requests that are left in standard input, which the server shared."""
    os.set_blocking(0, False)
    left = b""
    try:
        while piece := os.read(0, 1 << 16):
            left += piece
    except BlockingIOError:  # no more
        pass
    for line in left.splitlines():
        try:
            request = json.loads(line)
        except ValueError:  # the rest of one that the server read in part
            continue
        if "id" in request:
            error = {"code": code, "message": "the server had ended"}
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}) + "\n")
    sys.stdout.flush()


def hand_on(source: IO[bytes], most: int) -> bool:
    """Copies to standard output until the end; False once a line is too long."""
    length = 0
    while piece := os.read(source.fileno(), 1 << 16):
        first, newline, _ = piece.partition(b"\n")
        longest = max(map(len, piece.split(b"\n")), default=0)
        if max(length + len(first), longest) > most:
            return False
        length = len(piece) - piece.rfind(b"\n") - 1 if newline else length + len(piece)
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    return True


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
