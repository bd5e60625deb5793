"""Killed with -9 in the middle of a run and started again: model calls that are made a second time.

The questions and commands of `rollouts.py`; after 6 of 10 calls the endpoint holds its answers, the process and its
children are killed, and the run is resumed as each tool says. Counted are calls that had been answered.
Equal: the right answers at the end.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from benchmarks.peers import rollouts
from benchmarks.peers.pairing import Told, measured
from benchmarks.peers.scripted import endpoint, told

PEERS, UNIT = {"verifiers": rollouts.VERIFY, "inspect": rollouts.LOOK}, "episodes"
HEADLINE, LESS, prepare = "calls in all", True, rollouts.prepare


def killed(peer: str, line: str, files: str, marks: str, again: str, kept: str, work: Path) -> Told:
    shutil.rmtree(work / "out", ignore_errors=True)
    with endpoint(0.05, 0.8, 2 * rollouts.COUNT) as url, measured() as run:
        env = rollouts.variables(url, work, peer)
        process = subprocess.Popen(shlex.split(line.replace("URL", url)), cwd=work, env=env, start_new_session=True)
        before = -1.0
        while not before == told(url)["calls"] >= 2 * rollouts.COUNT and process.poll() is None:
            before = told(url)["calls"]
            time.sleep(3)  # what has been answered is read
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        told(url, "thaw")
        found = [str(file) for file in (work / "out").rglob(kept)]
        command = again.replace("KEPT", (found or [""])[0]).replace("URL", url)
        subprocess.run(shlex.split(command), cwd=work, env=env, check=True)
        calls, right = told(url), rollouts.rightly(work, files, marks)
    figures = {HEADLINE: calls["calls"], "of these repeated": calls["repeated"]}
    return {**run, "units": rollouts.COUNT, "figures": figures, "right": right}


ours = partial(killed, "", *rollouts.OUR_RUN, rollouts.OURS, "-")
verifiers = partial(killed, "verifiers", *rollouts.VERIFIERS_RUN, f"{sys.prefix}/bin/vf-eval @ KEPT --resume --no-rich",
                    "eval.json")  # fmt: skip
inspect = partial(killed, "inspect", *rollouts.INSPECT_RUN, f"{sys.prefix}/bin/inspect eval-retry KEPT --display none"
                  " --log-dir out", "*.json")  # fmt: skip


def equal(ours: Told, theirs: Told) -> str:
    assert ours["right"] == theirs["right"], f"{theirs['right']} right, ours {ours['right']}"
    return f"{ours['right']} right answers"
