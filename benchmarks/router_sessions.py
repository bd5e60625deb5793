"""Three scripted endpoints behind a real router: does any question meet two, and how evenly are they asked?

    pip install vllm-router           # in an environment of its own: it brings a FastAPI of its own
    python benchmarks/router_sessions.py --router /path/to/vllm-router [--questions 60] [--policies …]

Each arm is `steprag generate` through `vllm-router --disable-retries` with one of its policies; `(no header)` is the
same without `policy.session_header`. "met two": questions whose calls reached more than one endpoint, as the endpoints
themselves saw the header; without it nobody can say.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from slots_speed import SESSION, command, endpoint, told

from steprag.engines.launch import free_port
from steprag.files import write_records
from steprag.types import Question

POLICIES = ("sticky_least_loaded", "consistent_hash", "round_robin", "cache_aware")


@contextmanager
def routed(router: str, policy: str, urls: Sequence[str], log: Path) -> Iterator[str]:
    """The address of the router, once it answers."""
    port, metrics = free_port("127.0.0.1"), free_port("127.0.0.1")
    argv = [router, "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics), "--policy", policy,
            "--disable-retries", "--worker-urls", *urls]  # fmt: skip
    with log.open("ab") as stream, subprocess.Popen(argv, stdout=stream, stderr=stream) as process:
        try:
            address, until = f"http://127.0.0.1:{port}", time.monotonic() + 60
            while time.monotonic() < until:
                try:
                    with urlopen(f"{address}/v1/models", timeout=5):
                        break
                except (URLError, OSError):
                    time.sleep(0.5)
            yield address
        finally:
            process.kill()


def sessions(address: str) -> Counter[str]:
    """Calls by session, as an endpoint saw them."""
    with urlopen(f"{address}/sessions") as reply:
        return Counter(json.load(reply))


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--router", required=True, help="the program vllm-router")
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=POLICIES)
    given = parser.parse_args(argv)
    arms = [(policy, True) for policy in given.policies] + [("consistent_hash", False)]
    lines = [f"{'policy':<34} {'calls of each endpoint':>24} {'met two':>8}"]
    with tempfile.TemporaryDirectory() as place:
        folder, questions = Path(place), Path(place) / "questions.jsonl"
        write_records(questions, [Question(f"q{i}", f"Which thing is thing {i}?", ("lek",))
                                  for i in range(given.questions)])  # fmt: skip
        for number, (policy, named) in enumerate(arms):
            with ExitStack() as stack:
                urls = [stack.enter_context(endpoint(given.latency)) for _ in range(3)]
                front = stack.enter_context(routed(given.router, policy, urls, folder / "router.log"))
                more = ["--policy.session_header", SESSION] if named else []
                run = command(urls[0], questions, folder / f"run-{number}", 8, *more)
                run[run.index("--policy.base_url") + 1] = f"{front}/v1"
                if subprocess.run(run).returncode:
                    raise SystemExit((folder / "router.log").read_text()[-2000:])
                met = Counter(name for url in urls for name in sessions(url) if name)
                calls = "/".join(str(told(url).calls) for url in urls)
                split = sum(count > 1 for count in met.values()) if named else "?"
                lines.append(f"{policy + ('' if named else ' (no header)'):<34} {calls:>24} {split:>8}")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
