"""These tests need a browser; a machine that has none skips, except in CI.

A page is opened from a file, as its readers do. All that it asks for is written down and nothing
gets through; a page that asked for anything, or complained, fails its test.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dpbench.report.page.content import Page
from dpbench.report.page.html import to_html
from tests.report.page.sample import sample_page

CHROMIUM = Path("/usr/bin/chromium")

Tab = Any
"""playwright's page; untyped, so that these files can be read without playwright."""
Opener = Callable[..., Tab]
"""(page, **options of the browser's context) to a tab that shows it."""


def unusable_reason() -> str | None:
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed"
    return None if CHROMIUM.exists() else f"there is no {CHROMIUM}"


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    if (reason := unusable_reason()) is not None:
        if os.environ.get("DPBENCH_SKIPS_FAIL"):
            pytest.fail(f"skipped elsewhere, but not in CI: {reason}")
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Containers rarely let a browser build its sandbox; these pages are ours.
        launched = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield launched
        launched.close()


class Watched:
    """A tab that shows one file, and what it said and asked for."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        self.address = file.as_uri()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.context = browser.new_context(**options)
        self.context.route("**", self._answer)
        self.tab = self.context.new_page()
        self.tab.set_default_timeout(10_000)
        self.tab.on("console", lambda message: self.complaints.append(message.text))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.goto(self.address)

    def _answer(self, route: Any) -> None:
        self.requests.append(route.request.url)
        if route.request.url.partition("#")[0] == self.address:
            route.continue_()
        else:
            route.abort()

    def check(self) -> None:
        """Raises if the page complained, or asked for anything but itself."""
        assert self.complaints == []
        assert {url.partition("#")[0] for url in self.requests} <= {self.address}


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Opener]:
    """Opens pages of the test's own, each in a context of its own."""
    watched = []

    def opened(page: Page, **options: Any) -> Tab:
        file = tmp_path / f"{len(watched)}.html"
        file.write_text(to_html(page), encoding="utf-8")
        watched.append(Watched(browser, file, **options))
        return watched[-1].tab

    yield opened
    for one in watched:
        one.context.close()
        one.check()


@pytest.fixture(scope="package")
def sample_tab(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    file = tmp_path_factory.mktemp("page") / "index.html"
    file.write_text(to_html(sample_page()), encoding="utf-8")
    watched = Watched(browser, file, permissions=["clipboard-read", "clipboard-write"])
    yield watched
    watched.context.close()


@pytest.fixture
def shown(sample_tab: Watched) -> Iterator[Tab]:
    """The sample page as it is on a first visit."""
    tab = sample_tab.tab
    tab.emulate_media(media="screen", color_scheme="light")
    tab.evaluate("sessionStorage.clear(); localStorage.clear()")
    tab.goto(sample_tab.address)
    yield tab
    sample_tab.check()
