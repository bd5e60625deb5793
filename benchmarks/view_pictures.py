"""The pictures of docs/viewer.md, taken of real runs in Chromium.

    python -m benchmarks.view_pictures BEFORE AFTER [--out docs/viewer]

BEFORE and AFTER are two runs of steprag infer on the same questions; the table shows all runs in AFTER's folder. Trees
and pairs are the shipped ones. Few colours keep the files small.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from apps.commands import run as steprag
from steprag.records.jsonl import written_whole
from tests.browser import chromium
from tests.viewing import SHIPPED, viewer

if TYPE_CHECKING:
    from playwright.sync_api import Page

SIZE = {"width": 1280, "height": 760}
COLOURS = 96


def picture(page: Page, path: Path) -> None:
    """A screenshot with few colours."""
    from PIL import Image

    image = Image.open(io.BytesIO(page.screenshot(animations="disabled")))
    stream = io.BytesIO()
    image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(stream, "PNG", optimize=True)
    with written_whole(path, "wb") as file:
        file.write(stream.getvalue())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs=2, type=Path, metavar="RUN")
    parser.add_argument("--out", type=Path, default=Path("docs/viewer"))
    given = parser.parse_args()
    before, after = (path.resolve() for path in given.runs)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        pairs = Path(folder) / "pairs"
        steprag(["pairs", "--trees", str(SHIPPED), "--out", str(pairs), "--card.plots", "false", "--label.name", "spre",
                 "--pairs.cross_action", "true", "--balance.unsolved_first", "false"])  # fmt: skip
        shots = {
            "runs": ("light", "#/", ".runs-table a"),
            "tree": ("light", "#/trees/trees/1/28", ".node-pane .raw"),
            "pair": ("dark", "#/pairs/pairs/0.3", ".two-sides ins"),
            "comparison": ("light", f"#/{after.name}/predictions//{before.name}", ".figures tbody"),
            "replay": ("dark", "#/trees/trees/1", ".replay-told"),
            "quality": ("light", f"#/{after.name}/quality//{before.name}", ".figures tbody"),
        }
        with viewer(after.parent) as table, viewer(SHIPPED, pairs, before, after) as records:
            for name, (scheme, place, seen) in shots.items():
                link, size = (table, SIZE | {"height": 330}) if name == "runs" else (records, SIZE)
                page = browser.new_context(viewport=size, color_scheme=scheme).new_page()  # type: ignore[arg-type]
                page.set_default_timeout(120_000)
                page.goto(link)
                page.wait_for_selector("nav a")
                page.goto(link.split("#")[0] + place)
                page.wait_for_selector(seen)
                if name == "comparison":
                    page.select_option(".filter-row select >> nth=0", "won")
                if name == "replay":
                    page.press(".replay input", "Home")
                    for _ in range(5):
                        page.press("[aria-label='An iteration on']", "Enter")
                page.wait_for_load_state("networkidle")
                picture(page, given.out / f"{name}.png")


if __name__ == "__main__":
    main()
