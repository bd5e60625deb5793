"""What a search of a given size would take on given machines, on paper: no part of it is measured here.

    python benchmarks/cluster_plan.py [--nodes 1 8] [--questions 100000] [--calls 100] [--cached 0.4] …

Every assumption is an argument. GPU seconds bound the calls a second; the rest follows from that pace. The defaults: a
model of 7B on H100s, and for this program's own parts what it took on one machine with scripted endpoints.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields

SECONDS_AN_HOUR = 3600


@dataclass(frozen=True)
class Assumptions:
    """What is believed; each is an option of the same name."""

    questions: int = 100_000
    calls: float = 100.0
    """Of a question's tree."""
    prompt: float = 1000.0
    """Tokens of a prompt."""
    cached: float = 0.4
    """Share of them that the engine has computed already."""
    completion: float = 180.0
    """Tokens that a call samples."""
    gpus: int = 8
    """Of a node."""
    prefill: float = 25_000.0
    """Prompt tokens that a GPU computes in a second."""
    decode: float = 8_000.0
    """Tokens that a GPU samples in a second."""
    latency: float = 4.0
    """Seconds of a call."""
    searches: float = 0.56
    """Of a call."""
    client: float = 450.0
    """Calls a second that one process of ours keeps up with."""
    retriever: float = 15.0
    """Searches a second of one retrieval service."""
    journal: float = 534.0
    """Bytes of a call in the journal."""
    tree: float = 1_940.0
    """Bytes of a call in trees.jsonl."""


def gpu_seconds(given: Assumptions) -> float:
    """Of a call."""
    return given.prompt * (1 - given.cached) / given.prefill + given.completion / given.decode


def plan(given: Assumptions, nodes: int) -> dict[str, str]:
    """The figures of a cluster of so many nodes."""
    calls = given.questions * given.calls
    pace = nodes * given.gpus / gpu_seconds(given)
    searches = pace * given.searches
    return {
        "calls": f"{calls:,.0f}",
        "calls a second": f"{pace:,.0f}",
        "hours": f"{calls / pace / SECONDS_AN_HOUR:,.1f}",
        "GPU hours": f"{calls * gpu_seconds(given) / SECONDS_AN_HOUR:,.0f}",
        "requests in flight": f"{pace * given.latency:,.0f}",
        "searches a second": f"{searches:,.0f}",
        "retrieval services": f"{math.ceil(searches / given.retriever):,}",
        "slots or shards": f"{math.ceil(pace / given.client):,}",
        "journal, GB": f"{calls * given.journal / 1e9:,.1f}",
        "journal, MB a second": f"{pace * given.journal / 1e6:,.2f}",
        "trees, GB": f"{calls * given.tree / 1e9:,.1f}",
        "trees, MB a second": f"{pace * given.tree / 1e6:,.2f}",
    }


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 8])
    for field in fields(Assumptions):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    values = vars(parser.parse_args(argv))
    nodes = values.pop("nodes")
    given = Assumptions(**values)
    columns = [plan(given, count) for count in nodes]
    lines = [f"{'nodes':<22}" + "".join(f"{count:>14,}" for count in nodes)]
    lines += [f"{name:<22}" + "".join(f"{column[name]:>14}" for column in columns) for name in columns[0]]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
