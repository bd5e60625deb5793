"""Text of a page, read in a process of its own that has bounded time and memory (`extraction_worker`)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from indexes.web.extraction_worker import read, write
from steprag.records.json_text import decoded

WORKER = Path(__file__).with_name("extraction_worker.py")
START_SECONDS = 20.0
"""What the process may take beyond a page's time for its first page: it imports lxml and trafilatura."""


@dataclass(frozen=True)
class Page:
    """What a page says."""

    title: str
    text: str


_PAGE = TypeAdapter(Page)


class Extractor:
    """Reads pages one after another. A page that takes too long, too much memory or kills the process has no text."""

    def __init__(self, seconds: float, megabytes: int, command: tuple[str, ...] | None = None) -> None:
        """`command` replaces the worker."""
        self._command = command or (sys.executable, "-I", "-X", "utf8", str(WORKER), str(megabytes))
        self._seconds, self._closed = seconds, False
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="extractor")

    async def extract(self, body: bytes, charset: str, url: str) -> Page | None:
        """The page's text; None where it has none or could not be read within the limits."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._ask, body, charset, url)

    def _ask(self, body: bytes, charset: str, url: str) -> Page | None:
        if self._closed:
            return None
        running = self._process is not None and self._process.poll() is None
        process = self._process = self._process if running and self._process else self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        watch = threading.Timer(self._seconds + (0 if running else START_SECONDS), process.kill)
        watch.start()
        try:
            write(process.stdin, json.dumps({"url": url, "charset": charset}).encode())
            write(process.stdin, body)
            reply = read(process.stdout)
        except OSError:  # it died, or was killed, while it was written to
            reply = None
        finally:
            watch.cancel()
        if reply is None:
            self._end()
            return None
        try:
            page = _PAGE.validate_python(decoded(reply))
        except ValueError:  # a page may have taken the process over
            self._end()
            return None
        return page if page.text.strip() else None

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}
        )

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            with self._process:  # closes the pipes and waits
                pass
            self._process = None

    async def aclose(self) -> None:
        """Ends the process, behind a page that it still reads."""
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(self._thread, self._end)
        self._thread.shutdown(wait=False)
