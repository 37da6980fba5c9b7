"""dpbench report --serve: what it answers, when it makes the page anew, how it ends."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dpbench import store
from dpbench.cli import report_server
from dpbench.cli.report_server import ReportServer, ServedReport, open_server
from dpbench.errors import StoreError, UsageError
from dpbench.live import LivePage, RunningSweep
from dpbench.store import SweepStore
from tests.analysis.builders import run, trial
from tests.builders import sweep_spec
from tests.cli.command import start


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sweep of which two trials have ended."""
    folder = tmp_path / "demo"
    with SweepStore.create(folder, sweep_spec(), ["sweep"]) as results:
        results.append(run(trial(), 100.0))
        results.append(run(trial(group_size=2), 180.0))
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[ReportServer]:
    with open_server(ServedReport(folder), 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn is tested elsewhere."""
    from dpbench.report import document

    monkeypatch.setattr(document, "draw", lambda subject: document.without("in this test"))


def ask(
    server: ReportServer, path: str, *, method: str = "GET", host: str | None = None
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def publish(folder: Path, page: LivePage) -> None:
    running = RunningSweep(
        host=os.uname().nodename,
        address=page.address,
        round=0,
        configurations=(0,),
        repetitions=(0,),
    )
    with SweepStore.append_to(folder) as results:
        results.publish(running)
        shutil.copy(folder / store.LIVE_FILE, folder / "kept")
    shutil.move(folder / "kept", folder / store.LIVE_FILE)


def test_the_page_and_its_version_are_all_there_is(server: ReportServer) -> None:
    status, page = ask(server, "/")
    assert status == 200
    assert "<!doctype html>" in page
    assert ask(server, "/version")[1].startswith("over-")
    for path in ("/index.html", "/../../etc/passwd", "/version/", "/?a"):
        assert ask(server, path) == (404, "not found")
    for method in ("POST", "PUT", "DELETE", "HEAD", "NONSENSE"):
        assert ask(server, "/", method=method)[0] == 404


def test_it_listens_on_loopback_and_to_this_host_only(server: ReportServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert ask(server, "/", host=f"localhost:{server.server_port}")[0] == 200
    assert ask(server, "/", host="evil.example")[0] == 404


def test_the_page_is_made_again_only_when_a_trial_has_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    whole = report_server.read_subject
    monkeypatch.setattr(
        report_server, "read_subject", lambda path: read.append(path) or whole(path)
    )
    report = ServedReport(folder)
    first = report.page()
    assert report.page() == first
    assert len(read) == 1
    with SweepStore.append_to(folder) as results:
        results.append(replace(run(trial("torch-ddp"), 90.0)))
    assert "torch-ddp" not in first
    assert "torch-ddp" in report.page()
    assert len(read) == 2


def test_while_the_sweep_runs_the_page_looks_for_news(folder: Path) -> None:
    with LivePage() as page:
        publish(folder, page)
        report = ServedReport(folder)
        assert report.version().startswith("running-")
        assert report.version() in report.page()
    assert report.version().startswith("over-")
    assert "running-" not in report.page()


def test_a_port_that_is_taken_is_one_line(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"--port {port}: Address already in use"):
            open_server(ServedReport(folder), port)
    with pytest.raises(UsageError, match="a number from 0 to 65535"):
        open_server(ServedReport(folder), 65_536)


def test_a_folder_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        ServedReport(tmp_path / "absent").page()


def test_ctrl_c_ends_it_in_good_order(folder: Path) -> None:
    with LivePage() as page:  # as long as it runs, nothing is drawn
        publish(folder, page)
        process = start("report", str(folder), "--serve", cwd=folder)
        assert process.stderr is not None
        assert " is shown at http://127.0.0.1:" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in errors
    assert "interrupted" not in errors
