"""How fast `steprag adapt questions` asks, and what a question costs, beside what was told beforehand.

    python -m benchmarks.adapt_speed [--questions 120] [--latency 0.5] [--concurrency 32]

An endpoint of its own process answers after `--latency` seconds: a script that writes and reads by templates, with
`--faults` of ten questions wrong. The documents are a made-up country. "share": calls a second, between the first and
the last call, of the `--concurrency` / `--latency` that are possible.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from apps.adapt.questions import QuestionsConfig
from apps.commands import run as steprag
from benchmarks.serve_load import as_options, asking
from benchmarks.slots_speed import endpoint, told
from steprag.records.jsonl import read_json
from tests.adapt_parts import FaultyPolicy, documents


@dataclass(frozen=True)
class Scripted:
    """The policy of the tests; in a thread, for it runs a loop of its own."""

    policy: FaultyPolicy

    def __call__(self, prompt: str, draw: int) -> str:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self.policy, prompt, 0).result()


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--questions", type=int, default=120)
    parser.add_argument("--latency", type=float, default=0.5, help="seconds a call takes")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--faults", type=int, default=4, help="questions of ten that are wrong")
    given = parser.parse_args(argv)
    scripted = Scripted(FaultyPolicy(faults=given.faults))
    with tempfile.TemporaryDirectory() as folder, endpoint(given.latency, scripted) as address:
        docs, index, out = (Path(folder) / name for name in ("docs", "index", "questions"))
        documents(docs, given.questions)
        asked = ["--questions", str(given.questions), "--dev", "0", "--test", str(given.questions // 2), "--hops", "2"]
        served = as_options(asking(address, given.concurrency))
        steprag(["index", "build", "--corpus", str(docs), "--out", str(index), "--encoder", "none"])
        steprag(["adapt", "questions", "--index", str(index), "--out", str(out), *asked, *served])
        seen, gates = told(address), read_json(out / "gates.json")
    config = QuestionsConfig.model_validate({"questions": given.questions, "dev": 0, "test": given.questions // 2,
                                             "hops": 2, "writer": "policy"})  # fmt: skip
    share = seen.calls / seen.seconds * given.latency / given.concurrency
    beforehand = 100 * sum(config.wanted.values()) / config.use(most=False).calls
    sys.stdout.write(f"{seen.calls} calls in {seen.seconds:.1f} s, share {share:.0%}; {sum(gates['passed'].values())} "
                     f"passed of {gates['paths']} paths, {gates['per_100_calls']:.1f} per 100 calls (plan: "
                     f"{beforehand:.1f})\n")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
