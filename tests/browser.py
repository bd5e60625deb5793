"""A real Chromium for tests of web pages: the system's package, driven by Playwright, with an eye on what a page may
not do.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MISSING = "no chromium: bash scripts/setup_browser.sh"


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser, closed in the end. Raises SystemExit where chromium is missing."""
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        raise SystemExit(MISSING)
    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser; the test is skipped where chromium or playwright is missing."""
    pytest.importorskip("playwright.sync_api", reason="no playwright: pip install -e '.[dev]'")
    if CHROMIUM is None:
        pytest.skip(MISSING)
    with chromium() as running:
        yield running


def page_script(name: str) -> str:
    """A function of `page_scripts/`, for a page to evaluate."""
    return (Path(__file__).parent / f"page_scripts/{name}.js").read_text(encoding="utf-8")


@contextmanager
def page_in(browser: Browser, **context: Any) -> Iterator[Page]:
    """A page of a fresh profile. At the end: no script error, nothing that the page's policy stopped, and no request to
    another host than the page's own.
    """
    profile = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **context})
    page, wrong, hosts = profile.new_page(), [], set()
    page.set_default_timeout(15000)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if "Content Security" in message.text else None)
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    try:
        yield page
        assert wrong == []
        assert hosts - {""} <= {urlsplit(page.url).netloc}
    finally:
        profile.close()


def violations(page: Page) -> str:
    """What axe finds wrong with the page as it stands; nothing is an empty text. Skips where axe is missing."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe: pip install -e '.[dev]'")
    found = axe.Axe().run(page)
    return found.generate_report() if found.violations_count else ""
