"""What a search of the web costs beside the network: a search engine and pages on this machine.

    python -m benchmarks.web_search [--pages 8] [--words 3000] [--searches 10]

Every page has so many words, and every search is a new one with pages of its own. The encoder is the embedded one, on
one thread. Printed are medians of two searches, the first of the web, the second of its snapshot, which ranks the same
passages again and does nothing else: seconds on the clock, and processor seconds of this process, which the process
that reads the pages is no part of.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from contextlib import aclosing
from pathlib import Path

from indexes import open_retriever
from tests.web_site import HTML, Web, article, web, web_file

WORDS = ("river", "city", "council", "budget", "school", "bridge", "winter", "train", "market", "harvest", "museum")


def page(words: int, draw: random.Random) -> bytes:
    """A page of paragraphs of 60 words."""
    paragraphs = [" ".join(draw.choices(WORDS, k=60)).capitalize() + "." for _ in range(max(1, words // 60))]
    return article("A page", *paragraphs)


def fill(here: Web, pages: int, words: int, number: int) -> None:
    """The pages that the next search finds."""
    draw = random.Random(number)
    here.hits = [{"url": f"/{number}/{n}", "title": f"Page {n}", "snippet": "A page."} for n in range(20)]
    here.pages = {f"/{number}/{n}": (200, HTML, page(words, draw)) for n in range(pages)}


async def measure(file: Path, here: Web, given: argparse.Namespace) -> dict[str, list[tuple[float, float]]]:
    """Clock and processor seconds of each search, and of each again."""
    times: dict[str, list[tuple[float, float]]] = {"web": [], "snapshot": []}
    async with aclosing(open_retriever(file)) as retriever:
        await retriever.ready()
        for number in range(given.searches + 1):
            fill(here, given.pages, given.words, number)
            for top_k, taken in zip((5, 4), times.values(), strict=True):  # one that was asked before is not ranked
                start = time.perf_counter(), time.process_time()
                found = await retriever.search(f"{WORDS[number % len(WORDS)]} and bridge number {number}", top_k)
                taken.append((time.perf_counter() - start[0], time.process_time() - start[1]))
                assert len(found) == top_k
    return {name: taken[1:] for name, taken in times.items()}  # the first starts the process that reads pages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("--pages", 8), ("--words", 3000), ("--searches", 10)):
        parser.add_argument(name, type=int, default=default)
    given = parser.parse_args()
    with web() as here, tempfile.TemporaryDirectory() as folder:
        file = web_file(Path(folder), here, None, snapshot=f"{folder}/snapshot")
        times = asyncio.run(measure(file, here, given))
    for name, taken in times.items():
        clock, processor = (statistics.median(each) for each in zip(*taken, strict=True))
        sys.stdout.write(f"{name}: {clock:.2f} s, {processor:.2f} s of processor\n")


if __name__ == "__main__":
    main()
