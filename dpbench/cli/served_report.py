"""The page that `dpbench report --serve` shows, and when it is made again.

It disturbs a sweep as little as it can: the page is made again only when a trial has ended and
somebody looks. Charts are drawn once the sweep is over, beside the answers: until they are there
the page comes without them, and then it looks for news and finds them.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from dpbench.cli.subjects import read_subject
from dpbench.cli.watching import is_running
from dpbench.errors import DpbenchError, StoreError
from dpbench.store import COLLECTIVES_FILE, TRIALS_FILE

if TYPE_CHECKING:
    from dpbench.analysis.subject import Subject
    from dpbench.report.page.pictures import Pictures

WHILE_RUNNING = "they are drawn when the sweep is over, as drawing takes time from it"
BEING_DRAWN = "they are being drawn, and the page shows them as soon as they are there"
DRAWN = "-drawn"
"""Behind the version of a page that has its charts."""


class ServedReport:
    """The page of one folder."""

    def __init__(self, folder: Path, *, charts: bool = True) -> None:
        self._folder = folder
        self._charts = charts
        self._lock = threading.Lock()
        self._made: tuple[str, str] | None = None
        self._pencil = threading.Lock()
        """Held by the one thread that draws."""
        self._drawn: tuple[str, Pictures] | None = None
        self._closed = threading.Event()

    def close(self) -> None:
        """Nothing more is drawn than the chart that is begun."""
        self._closed.set()

    def version(self) -> str:
        """Another text whenever the page would be another."""
        records = self._records()
        return f"{records}{DRAWN}" if self._pictures_of(records) else records

    def page(self) -> str:
        """Raises DpbenchError if the folder cannot be read any more."""
        from dpbench.report.document import page_of

        with self._lock:
            version = self.version()
            if self._made is None or self._made[0] != version:
                subject = read_subject(self._folder)
                pictures = self._pictures(subject, version.removesuffix(DRAWN))
                self._made = version, page_of(subject, pictures, version)
            return self._made[1]

    def _records(self) -> str:
        """Which records there are, and whether there will be more."""
        try:
            running = "running" if is_running(self._folder) else "over"
        except StoreError:  # which read_subject tells of
            running = "over"
        return "-".join([running, *(str(self._size(f)) for f in (TRIALS_FILE, COLLECTIVES_FILE))])

    def _size(self, name: str) -> int:
        try:
            return (self._folder / name).stat().st_size
        except FileNotFoundError:
            return 0

    def _pictures_of(self, records: str) -> Pictures | None:
        drawn = self._drawn
        return drawn[1] if drawn is not None and drawn[0] == records else None

    def _pictures(self, subject: Subject, records: str) -> Pictures:
        """As they are there by now; begins to draw them if nobody did."""
        from dpbench.report.page.pictures import without

        if not self._charts:
            return without("as was asked for")
        if subject.running:
            return without(WHILE_RUNNING)
        if (drawn := self._pictures_of(records)) is not None:
            return drawn
        # No daemon: one that ends with Python within a chart aborts the process.
        threading.Thread(target=self._draw, args=(subject, records)).start()
        return without(BEING_DRAWN)

    def _draw(self, subject: Subject, records: str) -> None:
        """One after the other, as matplotlib's settings are of the whole process."""
        from dpbench.report.page.pictures import draw, without

        with self._pencil:
            try:
                self._drawn = records, draw(subject, between=self._go_on)
            except _Closed:
                return
            except DpbenchError as error:
                self._drawn = records, without(str(error))

    def _go_on(self) -> None:
        if self._closed.is_set():
            raise _Closed


class _Closed(Exception):
    """Nobody will see what is drawn."""
