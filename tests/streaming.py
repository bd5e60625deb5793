"""An HTTP double that streams chat completions as engines do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.fakes import Endpoint, listening


@contextmanager
def streaming_endpoint(chunks: Callable[[dict[str, Any]], Iterable[Any]]) -> Iterator[Endpoint]:
    """`chunks(request)` are sent as events, then `[DONE]`; a text goes out as it is, all else as JSON."""
    seen: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append(request)
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for each in chunks(request):
                text = each if isinstance(each, str) else json.dumps(each)
                self.wfile.write(f"data: {text}\n\n".encode())
                self.wfile.flush()
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with listening(Handler) as address:
        yield Endpoint(f"{address}/v1", seen)
