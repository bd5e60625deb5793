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

from pydantic import ConfigDict, TypeAdapter

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
    __pydantic_config__ = ConfigDict(defer_build=True)


_PAGE = TypeAdapter(Page)


class BoundedProcess:
    """A process that answers frames with one frame, one question after another. It is started where none runs, and
    ended where it takes too long or gives no answer.
    """

    def __init__(self, command: tuple[str, ...], seconds: float) -> None:
        self._command, self._seconds = command, seconds
        self._process: subprocess.Popen[bytes] | None = None
        self.late = False
        """Whether the last answer did not come in time."""

    def ask(self, *frames: bytes) -> bytes | None:
        """The answer; None where the process died or was killed over it."""
        running = self._process is not None and self._process.poll() is None
        process = self._process = self._process if running and self._process else self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        self.late = False
        watch = threading.Timer(self._seconds + (0 if running else START_SECONDS), self._kill_late, [process])
        watch.start()
        try:
            for frame in frames:
                write(process.stdin, frame)
            reply = read(process.stdout)
        except OSError:  # it died, or was killed, while it was written to
            reply = None
        finally:
            watch.cancel()
        if reply is None:
            self.end()
        return reply

    def kill(self) -> None:
        """Ends an answer that another thread waits for."""
        if process := self._process:
            process.kill()

    def _kill_late(self, process: subprocess.Popen[bytes]) -> None:
        self.late = True
        process.kill()

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}
        )

    def end(self) -> None:
        """Ends the process; the next question starts another."""
        if self._process is not None:
            self._process.kill()
            with self._process:  # closes the pipes and waits
                pass
            self._process = None


class Extractor:
    """Reads pages one after another. A page that takes too long, too much memory or kills the process has no text."""

    def __init__(self, seconds: float, megabytes: int, command: tuple[str, ...] | None = None) -> None:
        """`command` replaces the worker."""
        command = command or (sys.executable, "-I", "-X", "utf8", str(WORKER), str(megabytes))
        self._worker, self._closed = BoundedProcess(command, seconds), False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="extractor")

    async def extract(self, body: bytes, charset: str, url: str) -> Page | None:
        """The page's text; None where it has none or could not be read within the limits."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._ask, body, charset, url)

    def _ask(self, body: bytes, charset: str, url: str) -> Page | None:
        if self._closed:
            return None
        reply = self._worker.ask(json.dumps({"url": url, "charset": charset}).encode(), body)
        if reply is None:
            return None
        try:
            page = _PAGE.validate_python(decoded(reply))
        except ValueError:  # a page may have taken the process over
            self._worker.end()
            return None
        return page if page.text.strip() else None

    async def aclose(self) -> None:
        """Ends the process, behind a page that it still reads."""
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(self._thread, self._worker.end)
        self._thread.shutdown(wait=False)
