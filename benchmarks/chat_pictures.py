"""The pictures of docs/chat.md: `steprag serve` as it comes, asked in Chromium.

    python -m benchmarks.chat_pictures runs/index [--question TEXT] [--out docs/chat-page]

The index is Atlas. The embedded model answers with the best adapter that is shipped.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.browser import chromium, page_in
from tests.test_chat_real import TOKEN, service

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

QUESTION = "How many provinces does the leading producer of platinum have?"
MODEL_SECONDS = 300
NARROW = {"width": 390, "height": 760}
SMALL = {"width": 900, "height": 720}
FRAME, LAST = 200, 3000
"""Milliseconds that a frame of the recording stands, and the last one."""


def main() -> None:
    """Writes one picture a state."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chat_pictures", description="pictures of docs/chat.md")
    parser.add_argument("index", type=Path, help="index of Atlas")
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--out", type=Path, default=Path("docs/chat-page"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with (
        chromium() as browser,
        tempfile.TemporaryDirectory() as runs,
        service(given.index, Path(runs) / "chat") as (_, client),
    ):
        link = f"{client.base_url}#token={TOKEN}"
        wide(browser, link, given.question, given.out / "answer.png")
        narrow(browser, link, given.question, given.out / "narrow.png")
        recording(browser, link, given.question, given.out / "answer.gif")


def wide(browser: Browser, link: str, question: str, picture: Path) -> None:
    """A whole turn, the passages of its last search open."""
    with page_in(browser) as page:
        ended = _asked(page, link, question)
        ended.locator(".found summary").last.click()
        _taken(page, picture, height=1350)


def narrow(browser: Browser, link: str, question: str, picture: Path) -> None:
    """The answer with its first source open, dark, on a telephone."""
    with page_in(browser, color_scheme="dark", viewport=NARROW) as page:
        sources = _asked(page, link, question).locator(".sources summary, .source summary")
        if sources.count():
            sources.first.click()
        page.keyboard.press("End")
        _taken(page, picture, height=NARROW["height"])


def recording(browser: Browser, link: str, question: str, picture: Path) -> None:
    """A turn from its question to its sources, as a moving picture."""
    from PIL import Image

    frames: list[Any] = []

    def taken() -> None:
        whole = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        frames.append(whole.resize((SMALL["width"] * 4 // 5, SMALL["height"] * 4 // 5), Image.Resampling.LANCZOS))

    with page_in(browser, viewport=SMALL) as page:
        page.goto(link)
        box = page.get_by_role("textbox", name="Question", exact=True)
        for end in range(0, len(question) + 8, 8):
            box.fill(question[:end])
            taken()
        page.keyboard.press("Enter")
        ending = page.locator(".turn").last.locator(".ending")
        while not ending.is_visible():
            page.wait_for_timeout(FRAME)
            page.keyboard.press("End")
            taken()
        source = page.locator(".sources summary, .source summary").last
        source.click()
        source.scroll_into_view_if_needed()
        page.wait_for_timeout(FRAME)
        taken()
    colours = frames[-1].quantize(64, dither=Image.Dither.NONE)
    shown = [frame.quantize(palette=colours, dither=Image.Dither.NONE) for frame in frames]
    stands = [FRAME] * (len(shown) - 1) + [LAST]
    shown[0].save(picture, save_all=True, append_images=shown[1:], duration=stands, loop=0, optimize=True)


def _asked(page: Page, link: str, question: str) -> Any:
    page.goto(link)
    page.get_by_role("textbox", name="Question", exact=True).fill(question)
    page.keyboard.press("Enter")
    turn = page.locator(".turn").last
    turn.locator(".ending").wait_for(timeout=MODEL_SECONDS * 1000)
    return turn


def _taken(page: Page, picture: Path, height: int) -> None:
    size: Any = {**(page.viewport_size or {}), "height": height}
    page.set_viewport_size(size)
    page.wait_for_timeout(300)
    page.screenshot(path=picture)


if __name__ == "__main__":
    main()
