"""How smoothly the viewer moves a tree, and how soon it opens a long run, in Chromium without a screen.

    python -m benchmarks.view_frames [--frames 200] [--trees 24800]

Frames: trees of 100, 1,000 and 10,000 nodes, whole and near, are dragged a few pixels at every frame. Printed are the
median and the 95th percentile, in milliseconds, of: the processor time that a frame takes the page (drawing the tree,
to the last pixel of its canvas) and Chromium behind it (putting the page on the screen, without a graphics card here);
and the time from frame to frame. Processor times hold on a busy machine too; the last tell of the whole machine.

Opening: a run of 100 trees and one of so many (about 44 kB each, copies of the shipped ones), with their indexes and
without. Printed are the seconds from the address until the first rows stand there, until the first tree does, and until
the whole list is known.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steprag.batch.results import index_of, places_of
from steprag.batch.tree_results import TREES
from steprag.records.jsonl import write_records
from tests.browser import chromium
from tests.viewing import made_run, made_tree, shipped_lines, viewer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SIZES = (100, 1_000, 10_000)
DRAG = """async ([frames, scale]) => {
  const stage = document.querySelector("canvas").stage;
  stage.rest(stage.whole());
  if (scale) stage.zoom(scale / stage.view.scale);
  const next = () => new Promise(requestAnimationFrame);
  const between = [];
  let last = await next();
  for (let i = 0; i < frames; i++) {
    stage.pan(i % 40 < 20 ? 4 : -4, i % 20 < 10 ? 3 : -3);
    const now = await next();
    between.push(now - last);
    last = now;
  }
  return between;
}"""
PAGE, SCREEN = "ProxyMain::BeginMainFrame", "DisplayScheduler::DrawAndSwap"
"""What Chromium's traces call a frame's work in the page's own thread, and in the one behind it."""


def percentiles(values: list[float]) -> str:
    """Median and 95th percentile."""
    return f"{statistics.median(values):6.1f} {statistics.quantiles(values, n=20)[-1]:6.1f}"


def opened(browser: Browser, link: str) -> Page:
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.set_default_timeout(600_000)
    page.goto(link)
    return page


def frames(browser: Browser, folder: Path, count: int) -> None:
    head = f"{'nodes':>6} {'view':>6}  {'page, ms':>13}  {'screen, ms':>13}  {'between, ms':>13}  elements"
    print(head)  # noqa: T201
    for size in SIZES:
        run = made_run(folder / str(size), made_tree(size))
        with viewer(run) as link:
            page = opened(browser, link)
            page.wait_for_selector(".node-pane .raw")
            elements = page.evaluate("document.querySelectorAll('*').length")
            for view, scale in (("whole", None), ("near", 1.0)):
                browser.start_tracing(page=page, categories=["viz", "cc", "toplevel"])
                between = page.evaluate(DRAG, [count, scale])
                events = json.loads(browser.stop_tracing())["traceEvents"]
                told = [percentiles(_spent(events, PAGE)), percentiles(_spent(events, SCREEN)), percentiles(between)]
                print(f"{size:6} {view:>6}  {'  '.join(told)}  {elements}")  # noqa: T201
            page.close()


def _spent(events: list[dict[str, Any]], name: str) -> list[float]:
    """Milliseconds of processor time of each event of that name."""
    return [event["tdur"] / 1000 for event in events if event.get("name") == name and "tdur" in event]


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


def opening(browser: Browser, runs: dict[int, Path]) -> None:
    """`runs` by their number of trees. A short one tells how long the page takes anyhow."""
    print(f"{'trees':>7} {'MiB':>6}  {'index':>7}  first rows, s  a tree, s  whole list, s")  # noqa: T201
    for index in ("with", "without"):
        for count, run in runs.items():
            size = (run / "trees.jsonl").stat().st_size / 2**20
            if index == "without":
                index_of(run / "trees.jsonl").unlink()
            with viewer(run) as link:
                told, start = [], time.perf_counter()
                page = opened(browser, link)
                for seen in ("#trees .row", ".node-pane .raw", f".shown:has-text('{count:,} trees')"):
                    page.wait_for_selector(seen)
                    told.append(time.perf_counter() - start)
                print(f"{count:7,} {size:6,.0f}  {index:>7}  {told[0]:13.2f}  {told[1]:9.2f}  {told[2]:13.2f}")  # noqa: T201
                page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--frames", type=int, default=200)
    parser.add_argument("--trees", type=int, default=24_800, help="0 leaves the opening out")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        frames(browser, Path(folder), given.frames)
        if given.trees:
            opening(browser, {count: long_run(Path(folder) / f"long{count}", count) for count in (100, given.trees)})


if __name__ == "__main__":
    main()
