"""Takes the pictures of docs/chat.md: python -m tests.chat_page_pictures. A scripted policy answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from steprag.types import Passage
from tests.browser import CHROMIUM, page_in
from tests.chat_parts import WritingPolicy, chat, scripted
from tests.fakes import QUESTION, answer, evidence, query
from tests.test_chat_page import ask, ended, opened

FOLDER = Path(__file__).parents[1] / "docs" / "chat-page"
PASSAGES = (
    Passage(
        "2611",
        "Government of Albania",
        "Tirana serves as the national capital of Albania. Albania keeps Liberation Day on 29 November.",
    ),  # fmt: skip
    Passage(
        "2365",
        "Albania",
        "Albania is a country in Southern Europe. Prices in Albania are quoted in the Albanian lek; "
        "the country's internet domain is .al.",
    ),  # fmt: skip
    Passage("1672", "Tirana", "Some 418,495 people live in Tirana, a city of Albania."),
)
STEPS = (
    query("country whose capital is Tirana", "I need the country whose capital is Tirana."),
    evidence("Tirana serves as the national capital of Albania."),
    query("currency of Albania", "The country is Albania, so I need its currency."),
    evidence("Prices in Albania are quoted in the Albanian lek."),
    answer("Albanian lek", "The currency of Albania is the Albanian lek."),
)


def main() -> None:
    """Writes one picture a state."""
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        with chat(WritingPolicy(scripted(*STEPS))) as served, page_in(browser) as page:
            served.retriever.passages = PASSAGES
            opened(page, served)
            ask(page, QUESTION)
            turn = ended(page)
            turn.locator(".found summary").nth(1).click()
            _picture(page, "answer", height=1310)
        narrow = {"width": 390, "height": 760}
        with (
            chat(WritingPolicy(scripted(*STEPS))) as served,
            page_in(browser, color_scheme="dark", viewport=narrow) as page,
        ):
            served.retriever.passages = PASSAGES
            opened(page, served)
            ask(page, QUESTION)
            ended(page).get_by_role("button", name="Albania").last.click()
            page.keyboard.press("End")
            _picture(page, "narrow", height=760)
        browser.close()


def _picture(page: Page, name: str, height: int) -> None:
    size: Any = {**(page.viewport_size or {}), "height": height}
    page.set_viewport_size(size)
    page.wait_for_timeout(300)
    page.screenshot(path=FOLDER / f"{name}.png")


if __name__ == "__main__":
    main()
