"""How smoothly the viewer moves a tree, and how soon it opens a long run, in Chromium without a screen.

    python benchmarks/view_frames.py [--frames 200] [--trees 10000]

Frames: trees of 100, 1,000 and 10,000 nodes, whole and near, are dragged a few pixels at every frame. Printed are the
milliseconds that drawing took, and those from frame to frame, at the median and the 95th percentile. Chromium draws on
the processor here; a machine with a screen is faster.

Opening: a run of so many trees (about 42 kB each, copies of the shipped ones) with its index, and without. Printed are
the seconds from the address until the first rows stand there, and until the whole list is known.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steprag.batch.results import index_of, places_of
from steprag.batch.tree_results import TREES
from steprag.files import write_records
from tests.viewing import made_run, made_tree, shipped_lines, viewer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
SIZES = (100, 1_000, 10_000)
DRAG = """async ([frames, scale]) => {
  const stage = document.querySelector("canvas").stage;
  stage.rest(stage.whole());
  if (scale) stage.zoom(scale / stage.view.scale);
  const next = () => new Promise(requestAnimationFrame);
  for (let i = 0; i < 10; i++) await next();
  stage.frames.length = 0;
  const between = [];
  let last = await next();
  for (let i = 0; i < frames; i++) {
    stage.pan(i % 40 < 20 ? 4 : -4, i % 20 < 10 ? 3 : -3);
    const now = await next();
    between.push(now - last);
    last = now;
  }
  return [stage.frames.slice(), between];
}"""


def percentiles(values: list[float]) -> str:
    """Median and 95th percentile."""
    return f"{statistics.median(values):6.1f} {statistics.quantiles(values, n=20)[-1]:6.1f}"


def opened(browser: Browser, link: str) -> Page:
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.set_default_timeout(600_000)
    page.goto(link)
    return page


def frames(browser: Browser, folder: Path, count: int) -> None:
    print(f"{'nodes':>6} {'view':>6}  {'drawing, ms':>13}  {'between frames, ms':>18}  elements")  # noqa: T201
    for size in SIZES:
        run = made_run(folder / str(size), made_tree(size))
        with viewer(run) as link:
            page = opened(browser, link)
            page.wait_for_selector(".node-pane .raw")
            elements = page.evaluate("document.querySelectorAll('*').length")
            for view, scale in (("whole", None), ("near", 1.0)):
                drawing, between = page.evaluate(DRAG, [count, scale])
                print(f"{size:6} {view:>6}  {percentiles(drawing)}  {percentiles(between):>18}  {elements}")  # noqa: T201
            page.close()


def long_run(folder: Path, count: int) -> Path:
    """A run of copies of the shipped trees, each with an id of its own, and its index."""
    folder.mkdir()
    rows = [json.loads(line) for line in shipped_lines(100)]
    with (folder / "trees.jsonl").open("w", encoding="utf-8") as stream:
        for number in range(count):
            row: dict[str, Any] = rows[number % len(rows)]
            row["question"]["id"] = f"copy-{number}"
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
    write_records(index_of(folder / "trees.jsonl"), places_of(folder / "trees.jsonl", TREES))
    return folder


def opening(browser: Browser, run: Path, count: int) -> None:
    size = (run / "trees.jsonl").stat().st_size / 2**20
    print(f"{count:,} trees, {size:,.0f} MiB")  # noqa: T201
    print(f"{'index':>8}  first rows, s  whole list, s")  # noqa: T201
    for index in ("with", "without"):
        if index == "without":
            index_of(run / "trees.jsonl").unlink()
        with viewer(run) as link:
            start = time.perf_counter()
            page = opened(browser, link)
            page.wait_for_selector("#trees .row")
            first = time.perf_counter() - start
            page.wait_for_selector(f".shown:has-text('{count:,} trees')")
            print(f"{index:>8}  {first:13.2f}  {time.perf_counter() - start:13.2f}")  # noqa: T201
            page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--frames", type=int, default=200)
    parser.add_argument("--trees", type=int, default=10_000)
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        sys.exit("no chromium: bash scripts/setup_browser.sh")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        frames(browser, Path(folder), given.frames)
        opening(browser, long_run(Path(folder) / "long", given.trees), given.trees)
        browser.close()


if __name__ == "__main__":
    main()
