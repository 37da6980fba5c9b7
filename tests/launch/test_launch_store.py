"""Where the launcher's store listens: at one address, and nothing in it is executed."""

from __future__ import annotations

import socket
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dpbench.errors import LaunchError, UsageError
from dpbench.launch import launch_store
from dpbench.launch.launch_store import UNPICKLES, claimed, held, serve_store
from dpbench.launch.torchrun import read, run
from dpbench.rendezvous.launch_variables import LOOPBACK
from tests.cli.command import start
from tests.launch.tidy import after_torchrun
from tests.ports import free_port

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # torch's own
WAIT = """
import os, time
open("place", "w").write(os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"])
while not os.path.exists("go"):
    time.sleep(0.02)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "wait.py").write_text(WAIT)
    monkeypatch.chdir(tmp_path)
    with after_torchrun():
        yield tmp_path


def listening() -> set[str]:
    found = psutil.Process().net_connections()
    return {each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN}


@pytest.mark.parametrize(
    "options",
    [[], ["--standalone"], ["--nnodes", "1:1"], ["--master-port", "0"], ["--rdzv-id", "mine"]],
    ids=" ".join,
)
def test_one_node_listens_on_loopback_and_executes_nothing(
    options: list[str], folder: Path
) -> None:
    """While the workers run; torch itself would take c10d, at all addresses."""
    before, during = listening(), set[str]()

    def look() -> None:
        while not (folder / "place").exists():
            time.sleep(0.02)
        during.update(listening())
        (folder / "go").touch()

    thread = threading.Thread(target=look)
    thread.start()
    run(read([*options, "wait.py"]), threads=1)
    thread.join()
    assert (folder / "place").read_text().startswith("127.0.0.1:")
    assert during - before <= {"127.0.0.1"}


def test_node_0_of_several_holds_a_static_store_and_others_hold_none() -> None:
    said: list[str] = []
    endpoint = f"127.0.0.1:{free_port()}"
    first = read(["--nnodes=2", "--node-rank=0", f"--rdzv-endpoint={endpoint}", "wait.py"])
    with held(first, pytest.fail) as options:
        assert (options.rdzv_backend, options.rdzv_endpoint) == ("static", endpoint)
        words = "cannot listen at port [0-9]+: Address already in use; .* --node-rank 0"
        with pytest.raises(UsageError, match=words), held(first, pytest.fail):
            pass
    c10d = read(["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:1", "wait.py"])
    with held(c10d, said.append) as options:
        assert options is c10d
    assert said == [UNPICKLES]
    with held(read(["--nnodes=2", "--node-rank=1", "wait.py"]), pytest.fail) as options:
        assert options.node_rank == 1


def test_a_port_that_is_taken_is_an_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        chosen = read(["--master-port", str(port), "wait.py"])
        with pytest.raises(UsageError, match=f"cannot listen at port {port}: Address already"):
            run(chosen, threads=1)


def test_a_worker_is_told_the_place_that_the_user_chose(folder: Path) -> None:
    (folder / "go").touch()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    run(read(["--master-port", str(port), "wait.py"]), threads=1)
    assert (folder / "place").read_text() == f"127.0.0.1:{port}"


@pytest.fixture
def endpoint() -> Iterator[str]:
    store = serve_store(at_loopback=True)
    yield f"{LOOPBACK}:{store.port}"
    del store  # listens until here


def node(number: int, endpoint: str, **changes: object) -> Namespace:
    return Namespace(
        **{
            "standalone": False,
            "node_rank": number,
            "rdzv_endpoint": endpoint,
            "rdzv_id": "none",
            "rdzv_conf": "timeout=1",
            "master_addr": LOOPBACK,
            "master_port": 29500,
            **changes,
        }
    )


def test_a_number_belongs_to_the_launcher_that_has_it_while_it_lives(endpoint: str) -> None:
    with claimed(node(1, endpoint)), claimed(node(0, endpoint)):
        words = "got --node-rank=1, which process [0-9]+ on .* has already; expected another"
        with pytest.raises(UsageError, match=words), claimed(node(1, endpoint)):
            pass
        with claimed(node(1, endpoint, rdzv_id="another job")):
            pass
    with claimed(node(1, endpoint)):  # as a launcher that was killed and started again
        pass


def test_without_an_endpoint_or_a_port_every_node_takes_the_usual_port(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With None as the default of its option, as in torch from some version on."""
    monkeypatch.setattr(launch_store, "USUAL_PORT", int(endpoint.rpartition(":")[2]))
    with claimed(node(1, "", master_port=None)):
        pass


def test_a_node_0_that_does_not_come_is_one_line() -> None:
    nobody = f"{LOOPBACK}:{free_port()}"
    with pytest.raises(LaunchError) as failed, claimed(node(1, nobody)):
        pass
    words = str(failed.value)
    assert words.startswith("the nodes did not come together: node 0 did not come within 1 s")
    assert words.endswith("compare --rdzv-endpoint of all nodes")


WAITS = """
import os, time
open(f"started{os.environ['RANK']}", "w").close()
while not os.path.exists("go"):
    time.sleep(0.05)
"""


@pytest.mark.slow
def test_the_launchers_that_were_first_do_not_notice(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    place = f"--rdzv-endpoint={LOOPBACK}:{free_port()}"
    first, second, late = (
        ("launch", "--nnodes", "2", "--node-rank", number, place, "waits.py")
        for number in ("0", "1", "1")
    )
    leading, following = start(*first, cwd=tmp_path), start(*second, cwd=tmp_path)
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("started?"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    refused = start(*late, cwd=tmp_path)
    _, printed = refused.communicate(timeout=120)
    assert refused.returncode == 2
    assert "got --node-rank=1, which process " in printed.splitlines()[-1]
    (tmp_path / "go").touch()
    for process in (leading, following):
        _, printed = process.communicate(timeout=120)
        assert process.returncode == 0, printed
