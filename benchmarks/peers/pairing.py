"""What a comparison is made of: its peers, what is timed, servers that are asked. Standard library alone, since it runs
in the environments of others too (Python 3.10 or newer).

    PYTHON benchmarks/peers/pairing.py FILE FUNCTION WORK OUT [PACKAGE …]

calls one function of a comparison's file in WORK; what it returned, and which versions ran, goes to OUT as JSON.
"""

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import resource
import shlex
import socket
import subprocess
import sys
import time
import types
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

Told = dict[str, Any]
OURS = f"{sys.executable} -m apps.commands"


class Peer(NamedTuple):
    """How a peer gets its environment `.venv-peers/ROOM` (its name); without packages and script it runs in ours.

    `packages`: arguments of pip, a line a call; `torch` is always the version of `requirements.txt`. `source`:
    `OWNER/NAME@COMMIT` on GitHub, `:PATH` behind it for a part, from which the peer imports. `script`: one of this
    repository, which makes `.venv-NAME` instead.
    """

    packages: str = ""
    source: str = ""
    script: str = ""
    room: str = ""


def size(full: int, quick: int) -> int:
    """The first number, or the second with `--quick`."""
    return quick if os.environ.get("PEERS_QUICK") else full


def family(pid: int) -> dict[int, int]:
    """The process and what descends of it now, each with its ticks of processor time, ended children included."""
    stats: dict[int, list[str]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            stats[int(stat.parent.name)] = stat.read_text().rpartition(")")[2].split()
    found = [pid]
    for each in found:
        found += [child for child, fields in stats.items() if int(fields[1]) == each]
    return {each: sum(map(int, stats[each][11:15])) for each in found if each in stats}


def whole() -> Told:
    """As `measured`, of this process from its start, ended children included."""
    fields, children = Path("/proc/self/stat").read_text().rpartition(")")[2].split(), resource.RUSAGE_CHILDREN
    since = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    ended = resource.getrusage(children)
    cpu = time.process_time() + ended.ru_utime + ended.ru_stime
    return {"wall": since, "cpu": cpu, "peak": max(peak(os.getpid()), ended.ru_maxrss) / 1024}


def peak(pid: int) -> int:
    """The most KiB that a process ever held."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


@contextlib.contextmanager
def measured(pid: int | None = None) -> Iterator[Told]:
    """Times the block alone: `wall` and `cpu` in seconds, `peak` in MiB (mapped files count), of this process and its
    children, or of a server and its own.
    """
    pid, told = pid or os.getpid(), Told()
    before = family(pid)
    for each in before:
        with contextlib.suppress(OSError):
            Path(f"/proc/{each}/clear_refs").write_text("5")  # the peak starts anew, see proc(5)
    start = time.perf_counter()
    yield told
    after, kibibytes = family(pid), 0
    for each in after:
        with contextlib.suppress(OSError):
            kibibytes += peak(each)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss if pid == os.getpid() else 0
    cpu = (sum(after.values()) - sum(before.values())) / os.sysconf("SC_CLK_TCK")
    told.update(wall=time.perf_counter() - start, cpu=cpu, peak=max(kibibytes, ended) / 1024)


@contextlib.contextmanager
def serving(line: str, path: str, **variables: str) -> Iterator[tuple[str, int]]:
    """The address of a server and its process, once it answers at `path` anything at all; ended with its children
    afterwards. PORT in its command becomes a free one. Raises TimeoutError.
    """
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command, url = shlex.split(line.replace("PORT", str(port))), f"http://127.0.0.1:{port}"
    process = subprocess.Popen(command, env={**os.environ, **variables}, stdout=sys.stderr, start_new_session=True)
    end, there = time.monotonic() + 400, False
    try:
        while not there:
            try:
                urllib.request.urlopen(url + path, timeout=5).close()
                there = True
            except OSError as error:
                there = isinstance(error, urllib.error.HTTPError)
            if process.poll() is not None or time.monotonic() > end:
                raise TimeoutError(f"{command[0]} did not answer at {url}{path} (exit {process.poll()})")
            time.sleep(0.1)
        yield url, process.pid
    finally:
        for each in reversed(family(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, 15)
        process.wait(20)


def ranked(ours: Told, theirs: Told, within: float) -> str:
    """What is equal of both sides' "found", rankings of `[name, score]`: the names, but where scores are so near."""
    for place, (rows, others) in enumerate(zip(ours["found"], theirs["found"], strict=True)):
        assert len(rows) == len(others), f"ranking {place}: {len(rows)} and {len(others)} places"
        for (a, score), (b, other) in zip(rows, others, strict=True):
            assert a == b or abs(score - other) < within, f"ranking {place}: {a} ({score}) and {b} ({other})"
    return f"the order of {len(ours['found'])} rankings"


def load(file: Path) -> types.ModuleType:
    """A comparison's module. `benchmarks` is this folder, whatever package of that name a peer installs."""
    room = types.ModuleType("benchmarks")
    room.__path__ = [str(Path(__file__).parents[1])]
    sys.modules.setdefault("benchmarks", room)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    file, function, work, out, *packages = sys.argv[1:]
    sys.path.pop(0)  # this folder: a comparison's name must not hide a peer's module
    returned = getattr(load(Path(file)), function)(Path(work)) or {}
    versions = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    Path(out).write_text(json.dumps({"versions": versions, **whole(), **returned}), encoding="utf-8")
