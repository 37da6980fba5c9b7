"""A page, and what is seen in its markup."""

from __future__ import annotations

from functools import cache
from html.parser import HTMLParser
from typing import Any

from dpbench.report.markup import render_template
from dpbench.report.page import Page, build_page
from tests.report.sample import sample_records, subject


@cache
def whole() -> Page:
    """A page with charts, of a sweep in which a row failed, some were skipped, one was wrong."""
    one = subject(sample_records(repetitions=2), command=("sweep", "--resume", "--name", "a b"))
    return build_page(one, charts=True)


class Seen(HTMLParser):
    """Open tags, ids, attributes that load something, and the text of a page."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.references: list[str] = []
        self.handlers: list[str] = []
        self.tags: list[str] = []
        self.feed(markup)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "input", "link", "br"):
            self.open.append(tag)
        self.tags.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href") and value:
                (self.references if value.startswith("#") else self.loads).append(value)
            if name.startswith("on"):
                self.handlers.append(name)

    def handle_startendtag(self, tag: str, attributes: Any) -> None:
        self.handle_starttag(tag, attributes)
        if self.open[-1:] == [tag]:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def to_html(page: Page) -> str:
    return render_template("page.html", page=page)
