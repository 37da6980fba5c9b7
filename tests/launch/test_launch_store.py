"""Where the launcher's store listens: at one address, and nothing in it is executed."""

from __future__ import annotations

import socket
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

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


def test_the_first_of_several_nodes_listens_where_the_others_are_led() -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    chosen = read(["--nnodes=2", "--node-rank=0", f"--rdzv-endpoint={endpoint}", "wait.py"])
    before = listening()
    with held(chosen, pytest.fail) as options:
        assert options.rdzv_backend == "static"
        assert options.rdzv_endpoint == endpoint
        assert listening() - before <= {"127.0.0.1"}


def test_where_torch_listens_everywhere_or_unpickles_it_is_said() -> None:
    said: list[str] = []
    c10d = read(["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:1", "wait.py"])
    with held(c10d, said.append) as options:
        assert options is c10d
    assert said == [UNPICKLES]
    elsewhere = read(["--nnodes=2", "--rdzv-endpoint=192.0.2.77:1", "wait.py"])
    with held(elsewhere, said.append) as options:
        assert options is elsewhere
    assert "listens at all addresses of this host, as 192.0.2.77 stands for none" in said[1]
    with held(read(["--nnodes=2", "--node-rank=1", "wait.py"]), pytest.fail) as options:
        assert options.node_rank == 1


def test_a_port_that_is_taken_is_an_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        chosen = read(["--master-port", str(port), "wait.py"])
        with pytest.raises(UsageError, match=f"cannot listen at 127.0.0.1:{port}: Address already"):
            run(chosen, threads=1)


def test_a_worker_is_told_the_place_that_the_user_chose(folder: Path) -> None:
    (folder / "go").touch()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    run(read(["--master-port", str(port), "wait.py"]), threads=1)
    assert (folder / "place").read_text() == f"127.0.0.1:{port}"


IPV6 = pytest.mark.skipif(
    "lo" not in Path("/proc/net/if_inet6").read_text(), reason="this host's loopback has no IPv6"
)


def listening_at(port: int) -> list[str]:
    return [
        each.laddr.ip
        for each in psutil.Process().net_connections()
        if each.status == psutil.CONN_LISTEN and each.laddr.port == port
    ]


@pytest.mark.parametrize("address", [LOOPBACK, pytest.param("::1", marks=IPV6)])
def test_it_listens_at_one_address_and_answers_there(address: str) -> None:
    store = serve_store(address)
    assert listening_at(store.port) == [address]
    client = TCPStore(address, store.port, timeout=timedelta(seconds=10))
    client.set("key", "value")
    assert store.get("key") == b"value"


def test_whoever_asks_for_a_store_at_its_port_gets_it() -> None:
    """As torch's agent does, which would listen at all addresses of the host."""
    store = serve_store(LOOPBACK)
    store.set("key", "value")
    agents = TCPStore(LOOPBACK, store.port, 1, is_master=True, multi_tenant=True)
    assert agents.get("key") == b"value"
    assert listening_at(store.port) == [LOOPBACK]


@pytest.fixture
def endpoint() -> Iterator[str]:
    store = serve_store(LOOPBACK)
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


def test_a_second_node_0_on_another_host_is_refused(endpoint: str) -> None:
    """Which it is where the endpoint is no address of this one."""
    elsewhere = f"host0:{endpoint.rpartition(':')[2]}"
    chosen = read(["--nnodes=2", f"--rdzv-endpoint={elsewhere}", __file__])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpbench.launch.launch_store._own_address", lambda host: None)
        patch.setattr("dpbench.launch.launch_store._answers", lambda host, port: True)
        words = "got --node-rank=0, but the store of node 0 answers already at host0:"
        with pytest.raises(UsageError, match=words), held(chosen, pytest.fail):
            pass


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
