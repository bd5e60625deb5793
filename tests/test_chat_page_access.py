"""The chat page for everyone, and against everyone: keyboard, screen reader, narrow windows, both themes; text of
models, passages and web pages stays text.
"""

from __future__ import annotations

from typing import Any

import pytest

from steprag.types import Passage
from tests.browser import browser, page_in, violations
from tests.chat_parts import WORK, WritingPolicy, chat, scripted
from tests.fakes import answer, evidence, query
from tests.test_chat_page import ask, ended, opened, working

__all__ = ["browser"]
pytestmark = pytest.mark.slow
HOSTILE = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'> ![pixel](http://attacker.test/p.png) "
    "[click](javascript:window.hacked=1) <a href='javascript:window.hacked=1'>link</a> <svg onload=window.hacked=1>"
)
PAGE = "https://example.org/a?b=c"
WEB = Passage(f"{PAGE}#0123456789abcdef", "Lek <b>bold</b>", f"{HOSTILE} The lek is Albania's currency.", 0.5)
TRAP = Passage("javascript:window.hacked=1", "Trap", HOSTILE, 0.4)


def test_text_of_strangers_stays_text(browser: Any) -> None:
    script = scripted(query("Albania", HOSTILE.replace("<a", "<i").replace("</a>", "</i>")),
                      evidence("The lek is Albania's currency."), answer(f"lek {HOSTILE}"))  # fmt: skip
    with chat(WritingPolicy(script)) as served, page_in(browser) as page:
        served.retriever.passages = (WEB, TRAP)
        opened(page, served)
        ask(page, f"What {HOSTILE}?")
        turn = ended(page)
        assert "<script>window.hacked = 1</script>" in turn.locator(".answer-text").inner_text()
        assert "<script>" in turn.locator("h2").inner_text()
        turn.locator(".found summary").click()
        assert "![pixel](http://attacker.test/p.png)" in turn.locator(".passages").inner_text()
        turn.get_by_role("button", name="Inspect step 2").click()
        turn.locator(".inspect pre").first.wait_for()
        assert page.locator("#app :is(script, img, iframe, object, b b)").count() == 0
        assert page.evaluate("window.hacked") is None
        links = [link for link in turn.locator("a").all() if link.get_attribute("href")]
        assert {link.get_attribute("href") for link in links} == {PAGE}
        assert {link.get_attribute("rel") for link in links} == {"noopener noreferrer"}
        assert page.locator(".conversations").inner_text().count("<script>") == 1


def test_only_addresses_of_the_web_become_links_and_the_link_keeps_its_token(browser: Any) -> None:
    addresses = ["https://a.test/", "http://a.test/?q=1", "javascript:alert(1)", "JaVaScRiPt:alert(1)", " javascript:x",
                 "data:text/html,x", "//a.test/", "/etc", "blob:http://a.test/1", "http://", "", None]  # fmt: skip
    with chat(working()) as served, page_in(browser) as page:
        opened(page, served)
        linked = page.evaluate(
            "async (list) => { const { webAddress } = await import('/page/text.js'); return list.map(webAddress) }",
            addresses,
        )
        named = page.evaluate(
            "async (hash) => (await import('/page/controller.js')).addressed(hash)", "#token=a+b%2Fc=&c=c1"
        )
    assert named == {"token": "a+b/c=", "conversation": "c1"}
    assert linked == ["https://a.test/", "http://a.test/?q=1", *[None] * 10]


def test_what_a_screen_reader_is_told_are_ends_of_steps_never_tokens(browser: Any) -> None:
    with chat(working()) as served, page_in(browser) as page:
        opened(page, served)
        page.evaluate(
            """() => {
                window.told = [];
                const status = document.querySelector('[role=status]');
                new MutationObserver(() => window.told.push(status.textContent)).observe(
                    status, { characterData: true, childList: true, subtree: true });
            }"""
        )
        ask(page)
        ended(page)
        told = page.evaluate("window.told")
    assert told[-1] == "Answer: lek"
    whole = {"Step 1, Query: Tirana", "Step 1, Query: Tirana (3 passages found)", "Step 3, Query: Albania",
             "Step 2, Evidence: Tirana is the capital of Albania.", "Step 3, Query: Albania (3 passages found)",
             "Step 4, Evidence: Prices in Albania are quoted in the lek.", "Step 5, Answer: lek",
             "Answer: lek"}  # fmt: skip
    assert set(told) - {""} <= whole


def test_everything_is_reached_by_keyboard_and_the_focus_is_seen(browser: Any) -> None:
    with chat(WritingPolicy(scripted(*WORK, *WORK[3:]))) as served, page_in(browser) as page:
        opened(page, served)
        page.keyboard.type("Which currency?")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("In one word.")
        page.keyboard.press("Enter")
        turn = ended(page)
        assert turn.locator("h2").inner_text() == "Which currency?\nIn one word."
        names = tabbed(page, 45)
        for name in ("Skip to the question", "New conversation", "Edit the question", "Change step 1",
                     "Inspect step 5", "Copy the answer", "Source 1: Tirana", "Right"):  # fmt: skip
            assert name in names
        turn.get_by_role("button", name="Change step 3").focus()
        page.keyboard.press("Enter")
        page.locator(".edit textarea:focus").wait_for()
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement.ariaLabel") == "Change step 3"
        page.keyboard.press("Enter")
        page.locator(".edit textarea:focus").wait_for()
        page.keyboard.press("Control+A")
        page.keyboard.type("currency of Albania")
        page.keyboard.press("Enter")
        ended(page, 2)
        assert page.evaluate("document.activeElement.id") == "question"


def tabbed(page: Any, times: int) -> list[str]:
    """Names of what Tab reaches, once around the page; each shows its focus."""
    names = []
    for _ in range(times):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            """() => {
                const on = document.activeElement;
                if (on === document.body) return ['', 'none'];
                const name = on.ariaLabel ?? on.labels?.[0]?.textContent ?? on.textContent;
                const shown = on.id === 'question' ? on.closest('.box') : on;
                return [name.trim(), getComputedStyle(shown).outlineStyle];
            }"""
        )
        names.append(name)
        assert name == "" or outline != "none", name
    return names


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
def test_axe_finds_nothing_and_nothing_is_wider_than_the_window(browser: Any, scheme: str, width: int) -> None:
    long = f"https://example.org/{'x' * 300}#0123456789abcdef"
    script = scripted(*WORK, query("x" * 300), "I do not know.", *WORK)
    size = {"width": width, "height": 700}
    with chat(WritingPolicy(script)) as served, page_in(browser, viewport=size, color_scheme=scheme) as page:

        def fine() -> None:
            assert violations(page) == "", page.url
            assert page.evaluate("document.documentElement.scrollWidth") <= width

        page.goto(served.url)
        page.get_by_label("Link or token").wait_for()
        fine()
        opened(page, served)
        fine()
        ask(page)
        turn = ended(page)
        turn.locator(".found summary").first.click()
        turn.get_by_role("button", name="Inspect step 2").click()
        turn.locator(".inspect pre").first.wait_for()
        turn.get_by_role("button", name="Source 1: Tirana").click()
        turn.get_by_role("button", name="Wrong").click()
        fine()
        served.retriever.passages = (Passage(long, "y" * 200, "z" * 300, 0.5),)
        ask(page)
        turn = ended(page, 2)
        turn.locator(".found summary").click()
        turn.get_by_role("button", name="Change step 1").click()
        fine()
        page.get_by_role("button", name="Ask again from here").click()
        ended(page, 3)
        fine()


def test_a_narrow_window_has_a_drawer(browser: Any) -> None:
    size = {"width": 320, "height": 640}
    with chat(working()) as served, page_in(browser, viewport=size) as page:
        opened(page, served)
        ask(page, "First?")
        ended(page)
        page.get_by_role("button", name="Conversations").click()
        drawer = page.get_by_role("dialog", name="Conversations")
        drawer.get_by_role("link", name="First?").wait_for()
        assert violations(page) == ""
        page.keyboard.press("Escape")
        assert not drawer.is_visible()
        assert page.evaluate("document.activeElement.ariaLabel") == "Conversations"
        page.get_by_role("button", name="Conversations").click()
        drawer.get_by_role("button", name="New conversation").click()
        page.locator(".welcome").wait_for()
        assert not drawer.is_visible()


def test_the_theme_is_chosen_and_the_only_thing_kept(browser: Any) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    with chat(working()) as served, page_in(browser, color_scheme="dark") as page:
        opened(page, served)
        dark = page.evaluate(paper)
        page.get_by_role("button", name="Theme: system").click()
        light = page.evaluate(paper)
        assert light != dark
        page.reload()
        page.get_by_role("button", name="Theme: light").wait_for()
        assert page.evaluate(paper) == light
        ask(page)
        ended(page)
        assert page.evaluate("[Object.keys(localStorage), Object.keys(sessionStorage)]") == [["theme"], []]


def test_who_wants_no_motion_gets_none(browser: Any) -> None:
    policy = working(hold=True)
    with chat(policy) as served, page_in(browser, reduced_motion="reduce") as page:
        opened(page, served)
        ask(page)
        page.locator(".caret").wait_for()
        assert page.evaluate("document.getAnimations().length") == 0
        policy.go.set()
        ended(page)


def test_words_are_followed_at_the_end_and_left_alone_further_up(browser: Any) -> None:
    policy = WritingPolicy(scripted(*WORK, *WORK))
    size = {"width": 800, "height": 500}
    with chat(policy) as served, page_in(browser, viewport=size) as page:
        opened(page, served)
        ask(page)
        ended(page)
        end = "document.documentElement.scrollHeight - innerHeight - scrollY"
        assert page.evaluate(end) < 5
        policy.hold = True
        ask(page)
        page.locator(".turn").nth(1).locator(".step").get_by_text("Tirana").wait_for()
        page.evaluate("scrollBy(0, -400)")
        latest = page.get_by_role("button", name="To the latest")
        latest.wait_for()
        before = page.evaluate("scrollY")
        policy.go.set()
        ended(page, 2)
        assert page.evaluate("scrollY") == before
        latest.click()
        assert page.evaluate(end) < 5
