"""Recall@2/@5/@20 of the bare question, per set and mode: dense, BM25, both fused, and one hop along title links.

    python benchmarks/retrieval_recall.py --indexes DIR --data DIR [--split dev] [--reranker MODEL]

`--indexes` holds an index folder a set (DIR/hotpotqa, …) built with `steprag index build --hybrid`; `--data` the
questions (DIR/dev/hotpotqa.jsonl, …) with `metadata.supporting_ids`. PopQA counts a question where any of its passages
is found, the other sets the share of a question's passages. "rrf" is reciprocal rank fusion with equal weights,
"hybrid" the default. A cross-encoder's line appears where one is named.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from indexes import open_retriever
from indexes.commands.evaluate import evaluate, read_judged
from steprag.config.sections import RetrieverConfig

SETS = ("2wikimultihopqa", "hotpotqa", "musique", "popqa")
MODES: dict[str, dict[str, Any]] = {
    "dense": {"mode": "dense"},
    "BM25": {"mode": "sparse"},
    "rrf": {"mode": "hybrid", "fusion": "rrf", "dense_weight": 0.5},
    "hybrid": {"mode": "hybrid"},
    "hybrid, links": {"mode": "hybrid", "links": 0.6},
}
AT = (2, 5, 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--indexes", required=True, type=Path)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--split", default="dev", help="folder of --data [dev]")
    parser.add_argument("--reranker", help="cross-encoder: a folder or a hub id")
    given = parser.parse_args()
    modes = {**MODES, "re-ranked": {"mode": "hybrid", "reranker": given.reranker}} if given.reranker else MODES
    sets = [name for name in SETS if (given.data / given.split / f"{name}.jsonl").is_file()]
    sys.stdout.write(f"{'@2 @5 @20':<14}" + "".join(f"{name:>22}" for name in sets) + "\n")
    for label, values in modes.items():
        sys.stdout.write(f"{label:<14}")
        for name in sets:
            judged = read_judged(given.data / given.split / f"{name}.jsonl")
            retriever = open_retriever(given.indexes / name, RetrieverConfig(**values))
            figures = asyncio.run(evaluate(retriever, judged, AT))
            key = "any" if name == "popqa" else "recall"
            sys.stdout.write("{:>8.1f}{:>7.1f}{:>7.1f}".format(*(figures[f"@{k}"][key] for k in AT)))
            sys.stdout.flush()
        sys.stdout.write("\n")


if __name__ == "__main__":
    main()
