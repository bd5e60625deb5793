"""`steprag trees merge`: the shards of a run of `steprag generate` or `infer` as one run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from data_generation import tally
from inference import inference
from steprag.batch.merge import merge
from steprag.config.load import parse_arguments
from steprag.console.terminal import guarded
from steprag.errors import PART_DONE

MERGINGS = {"generate": tally.MERGING, "infer": inference.MERGING}
"""How runs of a stage are merged."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="steprag trees merge", description="Shards of a run (--shard I/N) as one run")
    parser.add_argument("out", metavar="OUT", help="run folder of the whole")
    parser.add_argument("shards", nargs="+", metavar="SHARD", help="run folders of all its shards, in any order")
    given = parse_arguments(parser, argv)
    return PART_DONE if merge(Path(given.out), [Path(folder) for folder in given.shards], MERGINGS) else 0


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
