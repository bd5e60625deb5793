"""What slots bear on a cluster of three nodes (three `ray start` on this machine): bytes and repeated calls.

    python benchmarks/slots_faults.py [--faults none slot node freeze driver chain budget] [--questions 60]

Each fault meets a run of `steprag generate --ray 2` over the same questions, after --fault_after calls to a scripted
endpoint (`slots_speed.py`): `slot` is killed, a `node` is killed with its slot, a node is frozen for --frozen seconds
and comes back (its raylet is stopped, its slot works on; Ray gives it up after about 65 s), the `driver` is killed and
the command repeated. `chain` kills the driver of two slots, then of one, and ends in one process without Ray. "again":
calls answered more than once. "same": whether trees.jsonl is that of one process.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from slots_speed import command, endpoint, told

from steprag.engines.launch import free_port
from steprag.errors import BudgetReached
from steprag.files import write_records
from steprag.types import Question

NODES = range(3)
MARK = "STEPRAG_FAULTS_NODE"
FAULTS = ("none", "slot", "node", "freeze", "driver", "chain", "budget")
Fault = Callable[["Cluster", "Watched"], None]


class Cluster:
    """A head without processors and two nodes with two each, as processes that are ended by their groups."""

    def __init__(self, folder: Path) -> None:
        self.address = f"127.0.0.1:{free_port('127.0.0.1')}"
        token = folder / "token"
        token.write_text(os.urandom(32).hex())
        self.env = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        self.env |= {"RAY_ADDRESS": self.address, "RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "300"}
        self._folder, port = folder, self.address.split(":")[1]
        self._start(0, "--head", "--port", port, "--num-cpus", "0", "--include-dashboard", "false")
        for number in (1, 2):
            self._start(number, "--address", self.address, "--num-cpus", "2")

    def _start(self, node: int, *options: str) -> None:
        """Starts a node and waits until it stands; the driver joins the head, as it does where hosts are shared."""
        argv = [Path(sys.executable).with_name("ray"), "start", "--block", "--disable-usage-stats", *options,
                "--object-store-memory", str(100 * 2**20)]  # fmt: skip
        env = {key: value for key, value in self.env.items() if key != "RAY_ADDRESS"} | {MARK: self._name(node)}
        log = self._folder / f"ray-{node}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(argv, env=env, stdout=stream, stderr=stream, start_new_session=True)
        while "Ray runtime started" not in log.read_text():
            if process.poll() is not None:
                raise SystemExit(f"node {node} did not start: {log.read_text()[-500:]}")
            time.sleep(0.5)

    def _name(self, node: int) -> str:
        return f"{self.address} {node}"

    def _processes(self, node: int) -> list[psutil.Process]:
        """All that was started for a node: its processes have the mark in their environment, whoever their parent."""
        found = []
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if each.environ().get(MARK) == self._name(node) and each.status() != psutil.STATUS_ZOMBIE:
                    found.append(each)
        return found

    def slots(self) -> list[tuple[int, psutil.Process]]:
        """Every slot with the number of its node."""
        return [(node, each) for node in NODES for each in self._processes(node) if each.name().startswith("ray::Slot")]

    def raylet(self, node: int) -> psutil.Process:
        """The process that speaks for a node."""
        return next(each for each in self._processes(node) if each.name() == "raylet")

    def kill(self, node: int) -> None:
        """Ends a node with all that runs on it."""
        while found := self._processes(node):
            for each in found:
                with contextlib.suppress(psutil.Error):
                    each.kill()
            psutil.wait_procs(found, 10)

    def close(self) -> None:
        """Ends all nodes."""
        for node in reversed(NODES):
            self.kill(node)


class Watched:
    """The command under work, and how to start it again with other slots."""

    def __init__(self, start: Callable[..., subprocess.Popen[bytes]], calls: Callable[[], int], *more: str) -> None:
        self.start, self.calls, self.note = start, calls, ""
        self.process = start(2, *more)

    def wait_for(self, calls: int) -> None:
        """Until the endpoint has had so many calls in this arm."""
        while self.calls() < calls and self.process.poll() is None:
            time.sleep(0.1)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def slot(cluster: Cluster, watched: Watched) -> None:
    del watched
    cluster.slots()[0][1].kill()


def node(cluster: Cluster, watched: Watched) -> None:
    del watched
    cluster.kill(cluster.slots()[0][0])


def freeze(seconds: float) -> Fault:
    def frozen(cluster: Cluster, watched: Watched) -> None:
        del watched
        raylet = cluster.raylet(cluster.slots()[0][0])
        raylet.suspend()
        time.sleep(seconds)
        raylet.resume()

    return frozen


def driver(cluster: Cluster, watched: Watched) -> None:
    del cluster
    watched.kill()
    watched.process = watched.start(2)


def chain(cluster: Cluster, watched: Watched) -> None:
    del cluster
    after = watched.calls()
    for slots in (1, 0):
        watched.kill()
        watched.process = watched.start(slots)
        if slots:
            watched.wait_for(2 * after)


def budget(limit: int) -> Fault:
    def reached(cluster: Cluster, watched: Watched) -> None:
        del cluster
        if watched.process.wait() != BudgetReached.exit_code:
            raise SystemExit("the run did not end at its budget")
        watched.note = f", {watched.calls() - limit} beyond the budget of {limit}"
        watched.process = watched.start(2)

    return reached


@contextmanager
def cluster_in(folder: Path) -> Iterator[Cluster]:
    cluster = Cluster(folder)
    try:
        yield cluster
    finally:
        cluster.close()


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--faults", nargs="+", default=list(FAULTS), choices=FAULTS)
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--latency", type=float, default=0.2)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--fault_after", type=int, default=300, help="calls after which the fault comes")
    parser.add_argument("--frozen", type=float, default=85, help="seconds")
    given = parser.parse_args(argv)
    do: dict[str, Fault] = {"none": lambda *_: None, "slot": slot, "node": node, "freeze": freeze(given.frozen),
                            "driver": driver, "chain": chain, "budget": budget(given.fault_after)}  # fmt: skip
    lines = [f"{'fault':<8} {'calls':>7} {'again':>6} {'seconds':>8}  same"]
    with tempfile.TemporaryDirectory() as place, endpoint(given.latency) as address:
        folder, questions = Path(place), Path(place) / "questions.jsonl"
        write_records(questions, [Question(f"q{i}", f"Which thing is thing {i}?", ("lek",))
                                  for i in range(given.questions)])  # fmt: skip
        subprocess.run(command(address, questions, folder / "plain", given.concurrency), check=True)
        wanted = (folder / "plain/trees.jsonl").read_bytes()
        for fault in given.faults:
            told(address, clear=True)
            with cluster_in(folder) as cluster:
                run = command(address, questions, folder / fault, given.concurrency)

                def start(slots: int, *more: str, run: list[str] = run, env: dict[str, str] = cluster.env) -> Any:
                    return subprocess.Popen([*run, "--ray", str(slots), *more], env=env)

                limited = ["--budget.calls", str(given.fault_after)] if fault == "budget" else []
                began, watched = time.monotonic(), Watched(start, lambda: told(address).calls, *limited)
                watched.wait_for(given.fault_after)
                do[fault](cluster, watched)
                code, took = watched.process.wait(), time.monotonic() - began
            seen = told(address)
            same = code == 0 and (folder / fault / "trees.jsonl").read_bytes() == wanted
            ended = "yes" if same else f"NO ({code})"
            line = f"{fault:<8} {seen.calls:>7} {seen.again:>6} {took:>8.1f}  {ended}{watched.note}"
            lines.append(line)
            sys.stderr.write(lines[-1] + "\n")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
