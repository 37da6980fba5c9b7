"""dpbench report --serve: a page on this machine that follows a running sweep.

It listens on loopback, answers GET and HEAD of / and /version, and leaves the cores to others.
"""

from __future__ import annotations

import os
import sys
from contextlib import closing, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

import typer

from dpbench.cli.interrupts import as_exceptions
from dpbench.cli.served_report import ServedReport
from dpbench.cli.shown import open_in_browser
from dpbench.errors import DpbenchError, UsageError

LOOPBACK = "127.0.0.1"
NICENESS = 19
LARGEST_PORT = 65_535


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
            elif (path := self.path.partition("?")[0]) == "/":
                self._say(200, self._report.page(), kind="text/html")
            elif path == "/version":
                self._say(200, self._report.version())
            else:
                self._say(404, "not found")
        except DpbenchError as error:
            self._say(500, str(error))

    def do_HEAD(self) -> None:
        """The same without the body, for those who look whether it is there."""
        self.do_GET()

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
        """Of what is no GET, and of what is no HTTP."""
        self._say(404, "not found")

    def log_message(self, *_: object) -> None:
        """Nobody reads them."""
