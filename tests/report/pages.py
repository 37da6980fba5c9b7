"""A page, and what is seen in its markup."""

from __future__ import annotations

from functools import cache
from html.parser import HTMLParser

from dpbench.report.page import page_text
from tests.builders import command
from tests.report.sample import analysis, sample_records


@cache
def whole() -> str:
    """A page with charts, of a sweep in which a row failed, some were skipped, one was wrong."""
    sweep = analysis(sample_records(repetitions=2), command=command(name="a b"))
    return page_text(sweep, charts=True)


class Seen(HTMLParser):
    """Tags that were not closed, all tags, and all attributes of a page."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(markup)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "input", "link", "br"):
            self.open.append(tag)
        self.handle_startendtag(tag, attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
