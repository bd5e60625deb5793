"""Start an engine as a child process, hand out its endpoint, stop it."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from steprag.engines import launch
from steprag.engines.cache import cache_dir
from steprag.engines.launch import EngineCommand, EngineSpec, Switch
from steprag.errors import ConfigError, PolicyUnavailable
from steprag.net.hosts import is_loopback
from steprag.records.json_text import decoded

_STARTUP_SECONDS = {"llamacpp": 120.0, "transformers": 300.0, "vllm": 1800.0}
_STOP_SECONDS = 8.0  # more than the guard takes to end a stubborn command
_LOG_NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class Endpoint:
    """Where a policy answers.

    `base_url` ends in `/v1`; `model` is what requests must name. `key`: what requests must carry, where this program
    made it up. `switch`: as in `EngineCommand`.
    """

    base_url: str
    model: str
    engine: str
    key: str | None = field(default=None, repr=False)
    switch: Switch = field(default_factory=dict)


@contextlib.contextmanager
def serving_us(spec: EngineSpec) -> Generator[Endpoint]:
    """As `serving`, with a random key for the engine, unless `spec` names the variable that holds one."""
    with serving(spec if spec.api_key_env else replace(spec, key=secrets.token_urlsafe(24))) as endpoint:
        yield endpoint


@contextlib.contextmanager
def serving(spec: EngineSpec, *, startup_seconds: float | None = None) -> Generator[Endpoint]:
    """Run `spec`'s engine for the length of a `with` block.

    Raises ConfigError before anything starts if files, programs or keys are missing, PolicyUnavailable with the
    engine's last words if it ends or is not healthy within `startup_seconds`. The log of an engine that
    failed is kept under `cache_dir()/logs`.
    """
    check_reachable(spec)
    command = launch.command(spec)
    log_path = cache_dir() / "logs" / f"{spec.engine}-{os.getpid()}-{next(_LOG_NUMBERS)}.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    process = _start(command, log_path)
    try:
        deadline = time.monotonic() + (startup_seconds or _STARTUP_SECONDS[spec.engine])
        url = command.url or _announced(process, log_path, deadline)
        _until_healthy(url, process, log_path, deadline)
        try:
            yield Endpoint(f"{url}/v1", command.model, spec.engine, spec.key, command.switch)
        finally:
            if process.poll() is None:
                log_path.unlink(missing_ok=True)
    finally:
        _stop(process)


def check_reachable(spec: EngineSpec) -> None:
    """Refuse to serve beyond this machine without a key."""
    if spec.api_key_env and not os.environ.get(spec.api_key_env):
        raise ConfigError(f"environment variable {spec.api_key_env} is empty; put the policy's API key in it")
    if is_loopback(spec.host):
        return
    if not spec.api_key_env:
        raise ConfigError(f"serving on {spec.host} needs a key: name its environment variable with --api_key_env")


def _start(command: EngineCommand, log_path: Path) -> subprocess.Popen[bytes]:
    with log_path.open("wb") as log:
        # A session of its own: Ctrl-C reaches the parent alone, which then stops the engine in order, and the
        # whole group can be killed. Standard input is a pipe that closes when we end (see `outlive_guard`).
        return subprocess.Popen(
            command.argv,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, **command.env},
            start_new_session=True,
        )


def _announced(process: subprocess.Popen[bytes], log_path: Path, deadline: float) -> str:
    """The URL that the child writes as a JSON line of its own, among what it logs."""
    while time.monotonic() < deadline:
        alive = process.poll() is None  # asked first: its last words are read too
        said = (line for line in log_path.read_bytes().splitlines() if line.startswith(b'{"url"'))
        if url := next(filter(None, map(_url_in, said)), None):
            return url
        if not alive:
            break
        time.sleep(0.05)
    raise _unavailable(process, log_path)


def _url_in(line: bytes) -> str | None:
    """The address that a line of the child names; None where it is none of an engine of ours, or not whole yet."""
    try:
        url = decoded(line)["url"]
        return url if urlsplit(url).scheme == "http" and urlsplit(url).port else None
    except (ValueError, TypeError, LookupError, AttributeError):
        return None


def _until_healthy(url: str, process: subprocess.Popen[bytes], log_path: Path, deadline: float) -> None:
    import http.client
    import urllib.error
    import urllib.request

    # Never through a proxy: HTTP_PROXY is set on many machines, and we ask this one.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline and process.poll() is None:
        with (
            contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError, http.client.HTTPException),
            opener.open(f"{url}/health", timeout=5),
        ):
            return
        time.sleep(0.05)
    raise _unavailable(process, log_path)


def _unavailable(process: subprocess.Popen[bytes], log_path: Path) -> PolicyUnavailable:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.5)  # its output may close a moment before it ends
    state = "did not become ready in time" if process.poll() is None else f"ended with status {process.returncode}"
    return PolicyUnavailable(f"the engine {state}: {_last_words(log_path)} (log: {log_path})")


def _last_words(log_path: Path, count: int = 3) -> str:
    lines = log_path.read_text(encoding="utf-8", errors="replace").splitlines()
    telling = [line.strip() for line in lines if "rror" in line or "ailed" in line] or [line.strip() for line in lines]
    return " | ".join(list(dict.fromkeys(telling))[-count:])[-600:] or "it said nothing"


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the child, then whatever its group still holds: an engine's helpers may outlive it."""
    if process.stdin is not None:
        process.stdin.close()
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
