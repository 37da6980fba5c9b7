"""dpbench report --serve: a page on this machine that follows a running sweep.

It listens on loopback, answers GET of / and /version, and disturbs as little as it can: the page
is made again only when a trial has ended and somebody looks, without charts until the sweep is
over, by a process that leaves the cores to others.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

import typer

from dpbench.cli.interrupts import as_exceptions
from dpbench.cli.report import open_in_browser
from dpbench.cli.subjects import read_subject
from dpbench.cli.watching import is_running
from dpbench.errors import DpbenchError, UsageError
from dpbench.store import COLLECTIVES_FILE, TRIALS_FILE

LOOPBACK = "127.0.0.1"
NICENESS = 19
LARGEST_PORT = 65_535


class ServedReport:
    """The page of one folder, made again when its records have changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._made: tuple[str, str] | None = None

    def version(self) -> str:
        """Another text whenever the page would be another."""
        running = "running" if is_running(self._folder) else "over"
        return "-".join([running, *(str(self._size(f)) for f in (TRIALS_FILE, COLLECTIVES_FILE))])

    def page(self) -> str:
        """Raises DpbenchError if the folder cannot be read any more."""
        from dpbench.report.document import page_of

        with self._lock:
            version = self.version()
            if self._made is None or self._made[0] != version:
                self._made = version, page_of(read_subject(self._folder), version)
            return self._made[1]

    def _size(self, name: str) -> int:
        try:
            return (self._folder / name).stat().st_size
        except FileNotFoundError:
            return 0


def serve_report(folder: Path, *, port: int, open_browser: bool) -> None:
    """Serves until Ctrl-C; raises UsageError if the port cannot be had, StoreError if the folder
    is none of results."""
    report = ServedReport(folder)
    with open_server(report, port) as server, as_exceptions(), suppress(KeyboardInterrupt):
        os.nice(NICENESS)
        report.page()
        address = f"http://{LOOPBACK}:{server.server_port}/"
        typer.echo(f"{folder} is shown at {address}; Ctrl-C ends it", err=True)
        if open_browser:
            open_in_browser(address)
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

    def server_bind(self) -> None:
        """Without asking for the name of this host, which may take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = LOOPBACK, self.server_address[1]

    def handle_error(self, *request: Any) -> None:
        """A browser may leave before it has its answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(*request)


class _Answer(BaseHTTPRequestHandler):
    """One request."""

    def __init__(self, report: ServedReport, *rest: object) -> None:
        self._report = report
        super().__init__(*rest)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        try:
            if not self._is_for_this_host():
                self._say(404, "not found")
            elif self.path == "/":
                self._say(200, self._report.page(), kind="text/html")
            elif self.path == "/version":
                self._say(200, self._report.version())
            else:
                self._say(404, "not found")
        except DpbenchError as error:
            self._say(500, str(error))

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
        self.wfile.write(body)

    def send_error(self, code: int, *_: object, **__: object) -> None:
        """Of what is no GET, and of what is no HTTP."""
        self._say(404, "not found")

    def log_message(self, *_: object) -> None:
        """Nobody reads them."""
