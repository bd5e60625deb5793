"""Whether a run's memory grows with its trees: resident MiB after so many trees, journal and files included.

    python benchmarks/memory.py [--trees 300 3000 10000]

The policy of `search_speed.py`, 64 requests at once, one process for each size.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import time

from search_speed import Latent, generate


def peak(trees: int) -> tuple[float, int]:
    """Resident MiB at most in a run of so many trees, and its calls."""
    policy = Latent()
    generate(policy, trees, {"policy.concurrency": 64, "search.rollouts": 16})
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, policy.calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=int, nargs="+", default=[300, 3_000, 10_000])
    given = parser.parse_args()
    for trees in given.trees:
        start = time.perf_counter()
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            mebibytes, calls = pool.apply(peak, (trees,))
        seconds = time.perf_counter() - start
        sys.stdout.write(f"{trees:>7,} trees, {calls:>9,} calls: {mebibytes:.0f} MiB ({seconds:.0f} s)\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
