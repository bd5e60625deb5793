"""The chat page in a real browser, over the real service with a scripted policy: asking, watching, stopping, coming
back, changing, judging; by keyboard, screen reader, in narrow windows and both themes; text of strangers stays text.
"""

from __future__ import annotations

import threading
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from steprag.errors import PolicyError
from steprag.types import Passage
from tests.browser import browser, page_in, page_script, violations
from tests.chat_parts import TOKEN, WORK, Served, WritingPolicy, chat, scripted, working
from tests.fakes import QUESTION, answer, evidence, query
from tests.test_own_documents import HANDBOOK

__all__ = ["browser"]
pytestmark = [pytest.mark.slow, pytest.mark.landing]


def asked(page: Any, served: Served) -> Any:
    """The turn of the usual question on a page that was just opened, once it is over."""
    opened(page, served)
    ask(page)
    return ended(page)


def opened(page: Any, served: Served) -> None:
    """The page by the link that the service prints."""
    page.goto(f"{served.url}/#token={TOKEN}")
    page.get_by_role("textbox", name="Question", exact=True).wait_for()


def ask(page: Any, question: str = QUESTION) -> None:
    page.get_by_role("textbox", name="Question", exact=True).fill(question)
    page.keyboard.press("Enter")


def ended(page: Any, turns: int = 1) -> Any:
    """The last turn, once it is over."""
    turn = page.locator(".turn").nth(turns - 1)
    turn.locator(".ending").wait_for()
    return turn


def test_a_newcomer_gives_the_token_reads_what_this_is_and_tries_an_example(browser: Any) -> None:
    with chat(working(), examples=(QUESTION, "Where is Lima?")) as served, page_in(browser) as page:
        page.goto(served.url)
        page.get_by_label("Link or token").fill("not this")
        page.keyboard.press("Enter")
        page.get_by_text("this is not the service's token").wait_for()
        page.get_by_label("Link or token").fill(f"{served.url}/#token={TOKEN}")
        page.keyboard.press("Enter")
        words = page.locator(".welcome").inner_text()
        assert all(word in words for word in ("search agent", "double", "world"))
        page.context.clear_cookies()
        ask(page)
        page.get_by_label("Link or token").fill(TOKEN)
        page.keyboard.press("Enter")
        box = page.get_by_role("textbox", name="Question", exact=True)
        box.wait_for()
        assert box.input_value() == QUESTION
        box.press("Enter")
        assert ended(page).locator(".answer").is_visible()
        opened(page, served)
        page.wait_for_url(f"{served.url}/")  # the token is gone from the address, and no script can read the cookie
        assert page.evaluate("document.cookie") == ""
        assert page.get_by_role("combobox", name="Mode").locator("option").count() == 4
        examples = page.locator(".examples button")
        examples.nth(1).wait_for()  # the welcome is drawn after the first answer of the server
        assert examples.count() == 2
        examples.first.click()
        assert ended(page).locator("h2").inner_text() == QUESTION


def test_a_step_is_seen_while_it_is_written_and_whole_at_the_end(browser: Any) -> None:
    """A reload shows the turn as far as it is; who wants no motion gets none; only the chosen theme is kept."""
    policy, paper = working(hold=True), "getComputedStyle(document.body).backgroundColor"
    with chat(policy) as served, page_in(browser, reduced_motion="reduce", color_scheme="dark") as page:
        opened(page, served)
        assert page.get_by_text("Try one").count() == 0  # of an index that nobody knows
        dark = page.evaluate(paper)
        page.get_by_role("button", name="Theme: system").click()
        light = page.evaluate(paper)
        assert light != dark
        ask(page)
        first = page.locator(".step").first
        first.get_by_text("Tirana").wait_for()
        assert "</query>" not in first.inner_text()
        assert page.get_by_role("button", name="Stop").is_visible()
        page.locator(".caret").wait_for()
        assert page.evaluate("document.getAnimations().length") == 0
        page.reload()
        first.get_by_text("Tirana").wait_for()
        page.get_by_role("button", name="Theme: light").wait_for()
        assert page.evaluate(paper) == light
        policy.go.set()
        turn = ended(page)
        assert page.evaluate("[Object.keys(localStorage), Object.keys(sessionStorage)]") == [["theme"], []]
        assert "<query>" not in turn.inner_text()
        turn.get_by_role("button", name="As written").click()
        assert turn.locator(".step-text").all_inner_texts() == [*WORK]
        assert turn.locator(".action").all_inner_texts() == ["Query", "Evidence", "Query", "Evidence", "Answer"]
        assert turn.locator(".answer-text").inner_text().startswith("lek")
        assert page.locator(".turn").count() == 1


def test_an_answer_is_traced_to_its_passages_copied_and_judged(browser: Any, tmp_path: Path) -> None:
    allowed = ["clipboard-read", "clipboard-write"]
    with chat(working(), tmp_path) as served, page_in(browser, permissions=allowed) as page:
        world = served.retriever.passages
        served.retriever.passages = tuple(  # spans count characters, of which a flag is two and four UTF-16 units
            type(one)(one.id, one.title, f"🇦🇱 {one.text}", one.score) for one in world
        )
        turn = asked(page, served)
        assert turn.locator(".lacking").count() == 0
        turn.get_by_role("button", name="Source 2: Albania").click()
        source = turn.locator(".sources li", has_text="Albania").filter(has_text="step 4")
        assert source.locator("mark").inner_text() == "Prices in Albania are quoted in the lek"
        assert turn.locator(".grounds").inner_text() == "3 passages read, 2 cited."
        found = turn.locator(".found").nth(1)
        assert not found.locator(".passages").is_visible()
        found.locator("summary").click()
        assert found.locator("mark").all_inner_texts().count("Prices in Albania are quoted in the lek") == 1
        turn.get_by_role("button", name="Copy the answer").click()
        page.get_by_text("Copied").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == "lek"
        turn.get_by_role("button", name="Wrong").click()
        page.get_by_label("The answer is").fill("the Albanian lek")
        page.keyboard.press("Enter")
        turn.get_by_text("The answer is the Albanian lek").wait_for()
        page.reload()
        ended(page).get_by_text("The answer is the Albanian lek").wait_for()
        assert page.get_by_role("button", name="Wrong").get_attribute("aria-pressed") == "true"
        assert '"answer":"the Albanian lek"' in (tmp_path / "turns.jsonl").read_text().replace('": "', '":"')


def test_an_answer_without_sources_says_so(browser: Any) -> None:
    script = scripted(answer("lek"), query("Tirana"), evidence("Nothing of this stands anywhere."), answer("lek"),
                      query("Tirana"), evidence("None"), answer("Kuna"))  # fmt: skip
    with chat(WritingPolicy(script)) as served, page_in(browser) as page:
        opened(page, served)
        page.get_by_role("combobox", name="Mode").select_option("direct")
        ask(page)
        assert "without searching" in ended(page).locator(".grounds").inner_text()
        page.get_by_role("combobox", name="Mode").select_option("local")
        ask(page)
        assert "none holds the agent's evidence" in ended(page, 2).locator(".grounds").inner_text()
        ask(page)
        assert "Not found in these documents" in ended(page, 3).locator(".lacking").inner_text()


def test_stop_ends_the_turn(browser: Any) -> None:
    policy = WritingPolicy(scripted(WORK[0], *WORK), hold=True)
    with chat(policy) as served, page_in(browser) as page:
        opened(page, served)
        ask(page)
        page.locator(".step").get_by_text("Tirana").wait_for()
        ask(page, "Another?")
        page.locator(".notice", has_text="One question at a time").wait_for()
        page.get_by_role("button", name="Stop").click()
        turn = ended(page)
        page.locator(".notice").wait_for(state="detached")
        assert "Stopped" in turn.inner_text()
        assert turn.locator(".trace summary").first.inner_text() == "an unfinished step"
        assert page.get_by_role("textbox", name="Question", exact=True).input_value() == "Another?"
        assert policy.cancelled == [WORK[0]]
        policy.go.set()
        turn.get_by_role("button", name="Ask again").click()
        assert ended(page, 2).locator(".answer").is_visible()


def test_a_service_that_is_killed_and_started_again_goes_on(browser: Any, tmp_path: Path) -> None:
    with page_in(browser) as page:
        with chat(working(hold=True), tmp_path) as served:
            opened(page, served)
            ask(page)
            page.locator(".step").get_by_text("Tirana").wait_for()
            port = int(served.url.rsplit(":", 1)[1])
        page.locator(".calm", has_text="connection to the service is lost").wait_for()
        with chat(working(), tmp_path, port=port):
            turn = ended(page)
            turn.get_by_role("button", name="As written").click()
            assert turn.locator(".step-text").all_inner_texts() == [*WORK]
            assert page.locator(".calm").count() == 0
            page.reload()
            assert ended(page).locator(".answer").is_visible()


def test_a_step_is_changed_and_asked_again_and_opened_and_a_refused_one_is_written_by_the_person(
    browser: Any, tmp_path: Path
) -> None:
    with chat(WritingPolicy(scripted(*WORK, *WORK[3:])), tmp_path) as served, page_in(browser) as page:
        asked(page, served).get_by_role("button", name="Change step 3").click()
        box = page.get_by_label("The query")
        assert box.input_value() == "Albania"
        page.get_by_role("button", name="Edit the whole step").click()
        page.get_by_label("The whole step").fill(evidence("x"))
        page.keyboard.press("Enter")
        page.get_by_text("this is no step that may stand here").wait_for()
        page.get_by_role("button", name="Edit the content alone").click()
        box.fill("currency of Albania")
        page.keyboard.press("Enter")
        fork = ended(page, 2)
        assert "Asked again from step 3" in fork.locator(".asked").inner_text()
        origins = [step.get_attribute("data-origin") for step in fork.locator(".step").all()]
        assert origins == ["kept", "kept", "yours", None, None]
        assert fork.locator(".step-text .content").nth(2).inner_text().strip() == "currency of Albania"
        fork.get_by_role("button", name="the earlier turn").click()
        assert page.evaluate("document.activeElement.closest('.turn') === document.querySelector('.turn')")
        served.policy.script = scripted(*WORK[:2], "So the next query is <query> Albania", *WORK[3:])
        turn = asked(page, served)
        assert "The last step was refused: it holds no complete action" in turn.inner_text()
        turn.get_by_role("button", name="Inspect step 1").click()
        behind = turn.locator(".inspect")
        behind.get_by_text(f"Question: {QUESTION}").wait_for()
        assert behind.locator(".chip").all_inner_texts() == ["Query", "Answer"]
        assert behind.locator(".candidate pre").inner_text() == WORK[0]
        turn.get_by_role("button", name="Inspect step 1").click()
        turn.get_by_role("button", name="Inspect step 3").click()
        behind.get_by_text("Refused: it holds no complete action").wait_for()
        turn.get_by_role("button", name="Change step 3").click()
        assert page.get_by_label("This step is").input_value() == "query"
        assert page.get_by_label("The query").input_value() == "Albania"
        page.get_by_label("This step is").select_option("answer")
        page.get_by_role("textbox", name="The answer").fill("lek")
        page.keyboard.press("Enter")
        fork = ended(page, 2)
        assert fork.locator(".answer-text").inner_text().startswith("lek")
        origins = [step.get_attribute("data-origin") for step in fork.locator(".step").all()]
        assert origins == ["kept", "kept", "yours"]


def test_a_rewritten_question_is_shown_and_can_be_changed(browser: Any) -> None:
    policy = WritingPolicy(lambda messages: answer("lek"))
    rewriter = WritingPolicy(lambda messages: "What is the currency of Albania?")
    with chat(policy, rewriter=rewriter) as served, page_in(browser) as page:
        opened(page, served)
        ask(page, "Which country?")
        ended(page)
        assert page.get_by_label("Use earlier turns").is_checked()
        ask(page, "And its currency?")
        turn = ended(page, 2)
        assert "Understood as: What is the currency of Albania?" in turn.locator(".asked").inner_text()
        turn.get_by_role("button", name="Edit the question").click()
        page.get_by_label("The question, as the agent is to see it").fill("What is the currency of Peru?")
        page.keyboard.press("Enter")
        assert ended(page, 3).locator("h2").inner_text() == "What is the currency of Peru?"
        assert rewriter.asked == 1


def test_conversations_are_listed_opened_deleted_and_in_a_drawer_where_it_is_narrow(browser: Any) -> None:
    with chat(WritingPolicy(lambda messages: answer("lek"))) as served, page_in(browser) as page:
        opened(page, served)
        ask(page, "First?")
        ended(page)
        first = page.url
        assert "#c=" in first
        page.get_by_role("button", name="New conversation").click()
        page.locator(".welcome").wait_for()
        ask(page, "Second?")
        ended(page)
        page.get_by_role("link", name="First?").click()
        page.get_by_role("heading", name="First?").wait_for()
        assert page.url == first
        page.go_back()
        page.get_by_role("heading", name="Second?").wait_for()
        page.get_by_role("link", name="First?").hover()
        page.get_by_role("button", name="Delete: First?").click()
        assert "has 1 turn. It, and what the agent read for it, will be gone" in page.locator(".confirm").inner_text()
        page.get_by_role("button", name="Keep").click()
        assert page.get_by_role("link", name="First?").is_visible()
        page.get_by_role("link", name="First?").hover()
        page.get_by_role("button", name="Delete: First?").click()
        page.get_by_role("button", name="Delete", exact=True).click()
        page.get_by_role("link", name="First?").wait_for(state="detached")
        page.set_viewport_size({"width": 320, "height": 640})  # a narrow window has a drawer
        page.get_by_role("button", name="Conversations").click()
        drawer = page.get_by_role("dialog", name="Conversations")
        drawer.get_by_role("link", name="Second?").wait_for()
        assert violations(page) == ""
        page.keyboard.press("Escape")
        assert not drawer.is_visible()
        assert page.evaluate("document.activeElement.ariaLabel") == "Conversations"
        page.get_by_role("button", name="Conversations").click()
        drawer.get_by_role("button", name="New conversation").click()
        page.locator(".welcome").wait_for()
        assert not drawer.is_visible()
        page.goto(first)
        page.locator(".notice", has_text="not there any more").wait_for()


def test_conversations_are_named_searched_exported_and_reached_by_keys(browser: Any) -> None:
    loop = "[capital of Peru] query " * 9
    with chat(WritingPolicy(scripted(answer("lek"), loop, answer("kuna")))) as served, page_in(browser) as page:
        opened(page, served)
        ask(page, "Which money?")
        ended(page).locator(".lacking").wait_for(state="detached")  # it did not search
        page.get_by_role("button", name="New conversation").click()
        ask(page, "Which money?")
        assert ended(page).locator(".step-text").inner_text().strip() == "[capital of Peru] query … (9 times)"
        page.get_by_role("link", name="Which money? (2)").wait_for()
        page.get_by_role("button", name="Rename: Which money? (2)").click(force=True)
        page.get_by_label("Name of the conversation").fill("Peru")
        page.keyboard.press("Enter")
        page.get_by_role("link", name="Peru").wait_for()
        page.keyboard.press("Control+k")
        page.keyboard.type("LEK")
        page.get_by_role("link", name="Peru").wait_for(state="detached")
        page.get_by_role("link", name="Which money?").click()
        with page.expect_download() as told:
            page.get_by_role("link", name="Markdown").click()
        assert "**Answer:** lek" in told.value.path().read_text()
        page.locator("h2").click()
        page.keyboard.press("/")
        page.keyboard.press("ArrowUp")
        assert page.get_by_role("textbox", name="Question", exact=True).input_value() == "Which money?"
        ended(page).get_by_role("button", name="Try this question again").click()
        assert ended(page, 2).locator(".answer-text").inner_text() == "kuna"


def test_only_turns_that_are_drawn_are_asked_for_and_none_after_an_error(browser: Any) -> None:
    asked: list[str] = []
    with chat(WritingPolicy(lambda messages: answer("lek"))) as served, page_in(browser) as page:
        more: dict[str, str] = {}
        for number in range(22):
            told = served.whole(f"Question {number}?", mode="direct", **more)
            more = {"conversation": told[0]["conversation"]}
        opened(page, served)
        page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/events") else None)
        page.goto(f"{served.url}/#c={more['conversation']}")
        ended(page, 20)
        assert len(asked) == 20
        broken = {"error": {"message": "the journal is damaged", "code": "failed"}}
        page.route("**/events", lambda route: route.fulfill(status=500, json=broken))
        page.get_by_role("button", name="Show earlier turns").click()
        page.get_by_text("The journal is damaged.").first.wait_for()
        ended(page, 2)
        page.wait_for_timeout(4000)  # longer than the browser waits before it tries again
        assert len(asked) == 20 + 2 * 2  # each asks once, and once why


class BrokenPolicy(WritingPolicy):
    """An engine that dies in mid-sentence."""

    async def stream(self, messages: Any, allowed: Any, *, seed: int, listener: Any) -> Any:
        listener("I need one")
        raise PolicyError("http://127.0.0.1:9: the reply broke off")


def test_a_failure_says_its_reason(browser: Any) -> None:
    with chat(BrokenPolicy(lambda messages: "")) as served, page_in(browser) as page:
        said = asked(page, served).inner_text()
        assert all(words in said for words in ("The turn failed", "the reply broke off", "I need one"))


def test_a_full_service_is_told_and_the_question_stays(browser: Any) -> None:
    policy = working(hold=True, go=threading.Event())
    with chat(policy, at_once=1, waiting=1) as served, page_in(browser) as page:
        opened(page, served)
        served.ask("one")
        served.ask("two")
        ask(page, "three")
        page.locator(".notice", has_text="Try again in 2 seconds").wait_for()
        assert page.get_by_role("textbox", name="Question", exact=True).input_value() == "three"
        policy.go.set()


HOSTILE = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'> ![pixel](http://attacker.test/p.png) "
    "[click](javascript:window.hacked=1) <a href='javascript:window.hacked=1'>link</a> <svg onload=window.hacked=1>"
)
PAGE = "https://example.org/a?b=c"
WEB = Passage(f"{PAGE}#0123456789abcdef", "Lek <b>bold</b>", f"{HOSTILE} The lek is Albania's currency.", 0.5)
TRAP = Passage("javascript:window.hacked=1", "Trap", HOSTILE, 0.4)


def test_text_of_strangers_stays_text(browser: Any) -> None:
    """Only addresses of the web become links, and the page's own link keeps its token."""
    script = scripted(query("Albania", HOSTILE.replace("<a", "<i").replace("</a>", "</i>")),
                      evidence("The lek is Albania's currency."), answer(f"lek {HOSTILE}"))  # fmt: skip
    addresses = ["https://a.test/", "http://a.test/?q=1", "javascript:alert(1)", "JaVaScRiPt:alert(1)", " javascript:x",
                 "data:text/html,x", "//a.test/", "/etc", "blob:http://a.test/1", "http://", "", None]  # fmt: skip
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
        web = "async (list) => { const { webAddress } = await import('/page/text.js'); return list.map(webAddress) }"
        assert page.evaluate(web, addresses) == ["https://a.test/", "http://a.test/?q=1", *[None] * 10]
        named = "async (hash) => (await import('/page/controller.js')).addressed(hash)"
        assert page.evaluate(named, "#token=a+b%2Fc=&c=c1") == {"token": "a+b/c=", "conversation": "c1"}


def test_everything_is_reached_by_keyboard_the_focus_is_seen_and_a_screen_reader_is_told_ends_of_steps_alone(
    browser: Any,
) -> None:
    with chat(WritingPolicy(scripted(*WORK, *WORK[3:]))) as served, page_in(browser) as page:
        opened(page, served)
        page.evaluate(
            """() => {
                window.told = [];
                const status = document.querySelector('[role=status]');
                new MutationObserver(() => window.told.push(status.textContent)).observe(
                    status, { characterData: true, childList: true, subtree: true });
            }"""
        )
        page.locator("textarea:focus").wait_for()
        page.keyboard.type("Which currency?")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("In Albania.")
        page.keyboard.press("Enter")
        turn = ended(page)
        told = page.evaluate("window.told")
        assert turn.locator("h2").inner_text() == "Which currency?\nIn Albania."
        names = tabbed(page, 55)
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
    assert told[-1] == "Answer: lek"
    whole = {"Step 1, Query: Tirana", "Step 1, Query: Tirana (3 passages found)", "Step 3, Query: Albania",
             "Step 2, Evidence: Tirana is the capital of Albania.", "Step 3, Query: Albania (3 passages found)",
             "Step 4, Evidence: Prices in Albania are quoted in the lek.", "Step 5, Answer: lek",
             "Answer: lek"}  # fmt: skip
    assert set(told) - {""} <= whole


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


def test_axe_finds_nothing_and_nothing_is_wider_than_the_window(browser: Any) -> None:
    long = f"https://example.org/{'x' * 300}#0123456789abcdef"
    script = scripted(*WORK, query("0x" * 150), "I do not know.", *WORK)
    with chat(WritingPolicy(script)) as served, page_in(browser) as page:

        def fine() -> None:
            for scheme, width in product(("light", "dark"), (320, 1280)):
                page.emulate_media(color_scheme=scheme)
                page.set_viewport_size({"width": width, "height": 700})
                assert violations(page) == "", (page.url, scheme, width)
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


def test_words_are_followed_at_the_end_and_left_alone_further_up(browser: Any) -> None:
    policy = WritingPolicy(scripted(*WORK, *WORK))
    size = {"width": 800, "height": 500}
    with chat(policy) as served, page_in(browser, viewport=size) as page:
        asked(page, served)
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


def test_what_a_question_searches_is_chosen_where_there_are_files_and_kept_with_its_turn(
    browser: Any, tmp_path: Path
) -> None:
    with chat(WritingPolicy(scripted(*WORK)), tmp_path, reads=True) as served, page_in(browser) as page:
        opened(page, served)
        choice = page.locator("select", has_text="My files first")
        assert choice.count() == 0
        page.evaluate(page_script("drop"), ["offices.md", "# Offices\n\nThe Belmora office has 212 employees."])
        page.get_by_role("button", name="Remove offices.md").wait_for()
        assert choice.locator("option:checked").inner_text() == "My files first"
        ask(page, "How many employees has the Belmora office?")
        turn = ended(page)
        assert "The Belmora office has 212 employees." in turn.locator(".answer-text").inner_text()
        assert "no language model read them" in turn.locator(".grounds").inner_text()
        choice.select_option("index")
        ask(page)
        assert "lek" in ended(page, 2).locator(".answer-text").inner_text()
        assert violations(page) == ""  # of two answers too
        page.reload()
        assert "212 employees" in ended(page).locator(".answer-text").inner_text()
        assert choice.input_value() == "index"
        for width, scheme in product((1280, 320), ("light", "dark")):
            page.set_viewport_size({"width": width, "height": 700})
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=tmp_path / f"{width}-{scheme}.png")
            assert page.evaluate("document.documentElement.scrollWidth") == width


def test_files_are_dropped_chosen_refused_asked_and_opened_at_their_page(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "handbook.pdf").write_bytes(HANDBOOK)
    (tmp_path / "torn.pdf").write_bytes(HANDBOOK[:200])
    said = "Whoever falls ill says so on the first day and brings a note on the third."
    policy = WritingPolicy(scripted(query("sick leave note"), evidence(said), answer("the third")))
    narrow = {"width": 320, "height": 700}
    with chat(policy, tmp_path) as served, page_in(browser, viewport=narrow, color_scheme="dark") as page:
        opened(page, served)
        page.locator("input[type=file]").set_input_files([tmp_path / "handbook.pdf", tmp_path / "torn.pdf"])
        ask(page, "Which note?")  # waits for the files
        page.locator(".notice", has_text="Take it from the list to ask without it.").wait_for()
        assert "torn.pdf: is damaged" in page.locator(".files").inner_text()
        assert violations(page) == ""
        page.get_by_role("button", name="Leave out torn.pdf").press("Enter")
        assert page.evaluate("document.activeElement.id") == "question"
        page.keyboard.press("Enter")
        ended(page).locator(".cite").first.click()
        link = page.get_by_role("link", name="Open handbook.pdf, page 2")
        assert link.get_attribute("href").endswith("/sources/1/file#page=2")
        assert "evidence of step 2, from your files" in page.locator(".sources").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") == 320
        assert violations(page) == ""
        page.evaluate(page_script("drop"), ["notes.md", "# Notes\n\nOne line."])
        page.get_by_text("Drop files to ask about them.").wait_for()
        page.get_by_role("button", name="Remove notes.md").wait_for()
        page.reload()
        page.get_by_role("button", name="Remove handbook.pdf").press("Enter")
        page.get_by_role("button", name="Remove handbook.pdf").wait_for(state="detached")
        assert page.locator(".file").count() == 1
