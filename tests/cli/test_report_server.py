"""dpbench report --serve: what it answers, when it makes the page anew, how it ends."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep

import pytest

from dpbench import store
from dpbench.analysis.subject import Subject
from dpbench.cli import report_server
from dpbench.cli.report_server import ReportServer, ServedReport, open_server
from dpbench.errors import StoreError, UsageError
from dpbench.report.page import pictures
from dpbench.report.page.pictures import Pictures, without
from dpbench.store import SweepStore
from dpbench.store.live import LivePage, RunningSweep
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


class Pencil:
    """Draws nothing, and not before it may."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.begun = 0

    def draw(self, subject: Subject, *, between: Callable[[], None]) -> Pictures:
        self.begun += 1
        assert self.may.wait(10)
        between()
        return without("they came out well")


@pytest.fixture(autouse=True)
def pencil(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pencil]:
    """What is drawn is tested elsewhere."""
    pencil = Pencil()
    monkeypatch.setattr(pictures, "draw", pencil.draw)
    yield pencil
    pencil.may.set()  # a thread may wait for it


def ask(
    server: ReportServer,
    path: str,
    *,
    method: str = "GET",
    host: str | None = None,
    secret: bool = True,
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    inside = f"{server.path}{path.removeprefix('/')}" if secret else path
    connection.request(method, inside, headers={"Host": host} if host else {})
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
    for path in ("/index.html", "/../../etc/passwd", "/version/", "/x?/version"):
        assert ask(server, path) == (404, "not found")
    for method in ("POST", "PUT", "DELETE", "NONSENSE"):
        assert ask(server, "/", method=method)[0] == 404


def test_previews_and_caches_have_their_answers(server: ReportServer) -> None:
    assert ask(server, "/?utm=1") == ask(server, "/")
    assert ask(server, "/version?2") == ask(server, "/version")
    assert ask(server, "/", method="HEAD") == (200, "")
    assert ask(server, "/absent", method="HEAD")[0] == 404


def test_it_listens_on_loopback_and_to_this_host_only(server: ReportServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert ask(server, "/", host=f"localhost:{server.server_port}")[0] == 200
    assert ask(server, "/", host="evil.example")[0] == 404


def test_another_user_of_the_machine_does_not_know_where_the_page_is(server: ReportServer) -> None:
    for path in ("/", "/version", server.path.upper(), f"/{'x' * 22}/", "", "//", server.path[:-1]):
        assert ask(server, path, secret=False) == (404, "not found")
    assert len(server.path) == 24
    assert server.address == f"http://127.0.0.1:{server.server_port}{server.path}"


def test_who_asks_for_nothing_is_hung_up_on_and_keeps_nobody_out(
    server: ReportServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_server._Answer, "timeout", 0.5)
    where = ("127.0.0.1", server.server_port)
    with ExitStack() as silent:
        crowd = [
            silent.enter_context(socket.create_connection(where, timeout=10)) for _ in range(40)
        ]
        assert all(one.recv(1) == b"" for one in crowd)
    assert ask(server, "/version")[0] == 200


def test_the_page_is_made_again_only_when_a_trial_has_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    whole = report_server.read_subject
    monkeypatch.setattr(
        report_server, "read_subject", lambda path: read.append(path) or whole(path)
    )
    report = ServedReport(folder, charts=False)
    first = report.page()
    assert report.page() == first
    assert len(read) == 1
    with SweepStore.append_to(folder) as results:
        results.append(run(trial("torch-ddp"), 90.0))
    assert "torch-ddp" not in first
    assert "torch-ddp" in report.page()
    assert len(read) == 2


def test_while_the_sweep_runs_the_page_looks_for_news(folder: Path, pencil: Pencil) -> None:
    with LivePage() as page:
        publish(folder, page)
        report = ServedReport(folder)
        assert report.version().startswith("running-")
        assert f'"{report.version()}"' in report.page()
        assert report_server.WHILE_RUNNING in report.page()
        assert pencil.begun == 0
    assert report.version().startswith("over-")
    assert "running-" not in report.page()


def test_charts_are_drawn_once_while_the_page_answers_without_them(
    folder: Path, pencil: Pencil
) -> None:
    report = ServedReport(folder)
    for _ in range(2):
        assert report_server.BEING_DRAWN in report.page()
    before = report.version()
    assert f'data-served-as="{before}"' in report.page()  # and so it will see the charts
    pencil.may.set()
    wait_until(lambda: report.version() != before)
    assert "charts are left out: they came out well" in report.page()
    assert f'data-served-as="{report.version()}"' in report.page()  # --resume may go on
    assert pencil.begun == 1


def test_charts_that_cannot_be_drawn_have_their_reason(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(*_: object, **__: object) -> Pictures:
        raise StoreError("losses of 3 steps are missing")

    monkeypatch.setattr(pictures, "draw", draw)
    report = ServedReport(folder)
    before = report.version()
    report.page()
    wait_until(lambda: report.version() != before)
    assert "charts are left out: losses of 3 steps are missing" in report.page()


def test_what_nobody_will_see_is_not_drawn(folder: Path, pencil: Pencil) -> None:
    report = ServedReport(folder)
    report.page()
    before, threads = report.version(), threading.active_count()
    report.close()
    pencil.may.set()
    wait_until(lambda: threading.active_count() < threads)
    assert report.version() == before


def test_no_charts_are_drawn_if_none_are_wanted(folder: Path, pencil: Pencil) -> None:
    assert "charts are left out: as was asked for" in ServedReport(folder, charts=False).page()
    assert pencil.begun == 0


def test_a_live_file_of_another_dpbench_takes_no_page_away(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / store.LIVE_FILE).write_text('{"schema_version": 1, "host": "h", "new_field": 1}')
    report = ServedReport(folder, charts=False)
    assert report.version().startswith("over-")
    assert "ddp/gloo" in report.page()
    assert "it is not followed" in capsys.readouterr().err


def wait_until(condition: Callable[[], bool]) -> None:
    end = monotonic() + 10
    while not condition():
        assert monotonic() < end
        sleep(0.01)


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
