"""`dpbench report --serve`: a page on this machine that follows a running sweep.

It listens on loopback, where every user of the machine may connect, and answers who knows its
secret address: GET and HEAD of that and of "version" behind it. It leaves the cores to others.
"""

from __future__ import annotations

import hmac
import os
import secrets
import sys
import threading
from contextlib import closing, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any

import typer

from dpbench.cli.show_results import open_in_browser
from dpbench.errors import DpbenchError, StoreError, UsageError
from dpbench.rendezvous.launch_variables import LARGEST_PORT, LOOPBACK
from dpbench.run.interrupts import as_exceptions
from dpbench.run.results import read_subject
from dpbench.run.watching import is_running
from dpbench.store import COLLECTIVES_FILE, TRIALS_FILE
from dpbench.temporary import temporary_folder

if TYPE_CHECKING:
    from dpbench.analysis.subject import Subject
    from dpbench.report.page.pictures import Pictures


NICENESS = 19
READ_SECONDS = 10.0
"""Limit for each piece of a request."""
MOST_CONNECTIONS = 32
REDIRECTION = '<!doctype html><meta http-equiv="refresh" content="0; url={}">\n'


def serve_report(folder: Path, *, port: int, open_browser: bool, charts: bool = True) -> None:
    """Serves until Ctrl-C; raises UsageError if the port cannot be had, StoreError if the folder
    is none of results."""
    with (
        closing(ServedReport(folder, charts=charts)) as report,
        open_server(report, port) as server,
        as_exceptions(),
        suppress(KeyboardInterrupt),
    ):
        os.nice(NICENESS)
        report.page()
        typer.echo(f"{folder} is shown at {server.address}; Ctrl-C ends it", err=True)
        with temporary_folder() as private:
            if open_browser:
                # All users see the arguments of a browser, and so would see the address.
                page = private / "open.html"
                page.write_text(REDIRECTION.format(server.address), encoding="utf-8")
                open_in_browser(page.as_uri())
            server.serve_forever()


def open_server(report: ServedReport, port: int) -> ReportServer:
    """Listens; 0 is any free port. Raises UsageError if the port cannot be had."""
    if not 0 <= port <= LARGEST_PORT:
        raise UsageError(f"--port {port}: expected a number from 0 to {LARGEST_PORT}")
    try:
        return ReportServer((LOOPBACK, port), partial(_Answer, report))
    except OSError as error:
        raise UsageError(f"--port {port}: {error.strerror}; take another one") from None


class ReportServer(ThreadingHTTPServer):
    """A thread for each request, as browsers keep connections that they do not use yet."""

    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self._slots = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self.path = f"/{secrets.token_urlsafe(16)}/"
        super().__init__(*arguments)

    @property
    def address(self) -> str:
        """Address of the page."""
        return f"http://{LOOPBACK}:{self.server_port}{self.path}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hangs up on who is one too many: each one takes a thread."""
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def server_bind(self) -> None:
        """Binds without asking for the name of this host, which may take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = LOOPBACK, self.server_address[1]

    def handle_error(self, *request: Any) -> None:
        """A browser may leave before it has its answer, or never ask."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(*request)


class _Answer(BaseHTTPRequestHandler):
    """One request."""

    timeout = READ_SECONDS

    def __init__(self, report: ServedReport, *rest: object) -> None:
        self._report = report
        super().__init__(*rest)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        try:
            name = self._name()
            if not self._is_for_this_host() or name is None:
                self._say(404, "not found")
            elif name == "":
                self._say(200, self._report.page(), kind="text/html")
            elif name == "version":
                self._say(200, self._report.version())
            else:
                self._say(404, "not found")
        except DpbenchError as error:
            self._say(500, str(error))

    def do_HEAD(self) -> None:
        """Answer like GET without the body, to check whether the page is there."""
        self.do_GET()

    def _name(self) -> str | None:
        """Name of the requested file behind the secret address; None for anything else."""
        secret: str = self.server.path  # type: ignore[attr-defined]
        path = self.path.partition("?")[0]
        known = hmac.compare_digest(path[: len(secret)].encode(), secret.encode())
        return path[len(secret) :] if known else None

    def _is_for_this_host(self) -> bool:
        """A page elsewhere whose name leads here must not read this one."""
        port = self.server.server_port  # type: ignore[attr-defined]
        return self.headers.get("Host") in (f"{LOOPBACK}:{port}", f"localhost:{port}")

    def _say(self, status: int, text: str, *, kind: str = "text/plain") -> None:
        body = text.encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, *_: object, **__: object) -> None:
        """Answers to requests that are no GET, or no HTTP."""
        self._say(404, "not found")

    def log_message(self, *_: object) -> None:
        """Nobody reads them."""


WHILE_RUNNING = "they are drawn when the sweep is over, as drawing takes time from it"
BEING_DRAWN = "they are being drawn, and the page shows them as soon as they are there"
DRAWN = "-drawn"
"""Suffix of the version of a page that has its charts."""


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
        """The charts drawn so far; starts drawing if nobody did."""
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
