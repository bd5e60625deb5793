"""Killed with -9 in the middle of a run and started again: model calls that are made a second time.

The questions and commands of `rollouts.py`; after 6 of 10 calls the endpoint holds its answers, the process and its
children are killed, and the run is resumed as each tool says. Counted are calls that had been answered.
Equal: the right answers at the end.
"""

import os
import shutil
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

from benchmarks.peers import rollouts
from benchmarks.peers.pairing import Told, measured
from benchmarks.peers.scripted import endpoint, told

PEERS = {name: rollouts.PEERS[name] for name in ("verifiers", "inspect")}
HEADLINE, prepare = "answered calls made again", rollouts.prepare


def killed(line: str, files: str, mark: str, kept: str, again: str, work: Path) -> Told:
    shutil.rmtree("out", ignore_errors=True)
    with endpoint(0.05, 0.8, 2 * rollouts.COUNT) as url, measured() as run:
        process = subprocess.Popen(rollouts.command(line, url), start_new_session=True)
        before = -1.0
        while not before == told(url)["calls"] >= 2 * rollouts.COUNT and process.poll() is None:
            before = told(url)["calls"]
            time.sleep(3)  # what has been answered is read
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        told(url, "thaw")
        found = [str(file) for file in Path("out").rglob(kept)]
        subprocess.run(rollouts.command(again.replace("KEPT", (found or [""])[0]), url), check=True)
        calls = told(url)
    figures = {HEADLINE: calls["repeated"], "calls in all": calls["calls"]}
    return {**run, "figures": figures, "same": {"right answers": rollouts.right(files, mark)}}


ours, verifiers, inspect = (partial(killed, *tool) for tool in rollouts.TOOLS)
