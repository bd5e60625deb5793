"""What a comparison is made of: its peers, what is timed, servers that are asked. Standard library alone, since it runs
in the environments of others too (Python 3.10 or newer).

    PYTHON benchmarks/peers/pairing.py FILE FUNCTION WORK OUT [PACKAGE …]

calls one function of a comparison's file and writes what it returned, and which versions ran, to OUT as JSON.
`benchmarks/peers/__main__.py` starts that in turn for each side; `peers.md` (its page) says what came out.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import resource
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
TICKS = os.sysconf("SC_CLK_TCK")


class Peer(NamedTuple):
    """How a peer gets its environment `.venv-peers/NAME`; `torch` is always the version of `requirements.txt`."""

    packages: str = ""
    """Arguments of pip, a line a call (`--no-deps flashrag-dev==0.3.0.dev20260919`)."""
    source: str = ""
    """`OWNER/NAME@COMMIT` on GitHub, `:PATH` behind it for a part; `source()` says where it lies."""
    needs: str = ""
    """A command that the machine must have."""
    script: str = ""
    """A script of this repository that makes `.venv-NAME` instead."""


def size(full: int, quick: int) -> int:
    """The first number, or the second with `--quick`."""
    return quick if os.environ.get("PEERS_QUICK") else full


def source() -> Path:
    """The folder of the peer's source, in its own process."""
    return Path(os.environ["PEERS_SOURCE"])


def apart(file: str, function: str, work: Path) -> None:
    """Calls a comparison's function in a process of its own, so that what it holds does not count."""
    command = [sys.executable, __file__, file, function, str(work), os.devnull]
    subprocess.run(command, check=True, stdout=sys.stderr)


def family(pid: int) -> list[int]:
    """The process and what descends of it, now."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def cpu_seconds(pid: int) -> float:
    """Processor time of the process and its children, those that have ended included."""
    ticks = 0
    for each in family(pid):
        with contextlib.suppress(OSError):
            ticks += sum(map(int, Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / TICKS


def peak_mib(pid: int) -> float:
    """The most that the process and its living children held since `measured` began, MiB (mapped files count)."""
    kibibytes = 0
    for each in family(pid):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{each}/status").read_text().splitlines()
            kibibytes += next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss if pid == os.getpid() else 0
    return max(kibibytes, ended) / 1024


@contextlib.contextmanager
def measured(pid: int | None = None) -> Iterator[Told]:
    """Times the block alone: `wall`, `cpu` (seconds) and `peak` (MiB) of this process, or of a server's."""
    pid, told = pid or os.getpid(), Told()
    for each in family(pid):
        with contextlib.suppress(OSError):
            Path(f"/proc/{each}/clear_refs").write_text("5")  # VmHWM starts anew (proc(5))
    cpu, wall = cpu_seconds(pid), time.perf_counter()
    yield told
    told.update(wall=time.perf_counter() - wall, cpu=cpu_seconds(pid) - cpu, peak=peak_mib(pid))


@contextlib.contextmanager
def serving(command: list[str], url: str, seconds: float = 120, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server, once `url` answers anything at all; ended with its children afterwards. `TimeoutError`, `OSError`."""
    process = subprocess.Popen(command, env={**os.environ, **variables}, stdout=sys.stderr, start_new_session=True)
    end = time.monotonic() + seconds
    try:
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > end:
                raise TimeoutError(f"{command[0]} did not answer at {url} (exit {process.poll()})")
            time.sleep(0.1)
        yield process
    finally:
        for each in reversed(family(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, 15)
        process.wait(20)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def load(file: Path) -> types.ModuleType:
    """A comparison's module. `benchmarks` is this folder, whatever package of that name a peer installs."""
    room = types.ModuleType("benchmarks")
    room.__path__ = [str(Path(__file__).parents[1])]
    sys.modules.setdefault("benchmarks", room)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"{file}: no comparison; give a name of benchmarks/peers/ or a file of Python")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    file, function, work, out, *packages = sys.argv[1:]
    sys.path.pop(0)  # this folder: a comparison's name must not hide a peer's module
    told = getattr(load(Path(file)), function)(Path(work)) or {}
    versions = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    Path(out).write_text(json.dumps({"versions": versions, **told}), encoding="utf-8")


if __name__ == "__main__":
    main()
