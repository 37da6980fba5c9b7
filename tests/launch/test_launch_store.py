"""The launcher's store: where it listens, and who holds which node rank in it."""

from __future__ import annotations

import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dpbench.errors import LaunchError, UsageError
from dpbench.launch.launch_store import claimed, held, serve_store
from dpbench.launch.torchrun import read, run
from dpbench.rendezvous.launch_variables import LOOPBACK
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


@pytest.mark.parametrize("options", [[], ["--master-port", "PORT"]], ids=" ".join)
def test_one_node_listens_on_loopback_and_executes_nothing(
    options: list[str], folder: Path
) -> None:
    """While the workers run; torch itself would take c10d, at all addresses."""
    port = str(free_port())
    before, during = listening(), set[str]()

    def look() -> None:
        while not (folder / "place").exists():
            time.sleep(0.02)
        during.update(listening())
        (folder / "go").touch()

    thread = threading.Thread(target=look)
    thread.start()
    run(read([*(port if word == "PORT" else word for word in options), "wait.py"]), threads=1)
    thread.join()
    chosen = port if "PORT" in options else ""
    assert (folder / "place").read_text().startswith(f"127.0.0.1:{chosen}")
    assert during - before <= {"127.0.0.1"}


def test_node_0_of_several_holds_a_static_store_and_others_hold_none() -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    first = read(["--nnodes=2", "--node-rank=0", f"--rdzv-endpoint={endpoint}", "wait.py"])
    with held(first) as options:
        assert (options.rdzv_backend, options.rdzv_endpoint) == ("static", endpoint)
        words = "cannot listen at port [0-9]+: Address already in use; .* --node-rank 0"
        with pytest.raises(UsageError, match=words), held(first):
            pass
    for others in ("--rdzv-backend=c10d", "--node-rank=1"):
        chosen = read(["--nnodes=2", others, "--rdzv-endpoint=h:1", "wait.py"])
        with held(chosen) as options:
            assert options is chosen


def node(number: int, endpoint: str, **changes: object) -> Namespace:
    chosen = read(
        [
            *("--nnodes=2", f"--node-rank={number}", f"--rdzv-endpoint={endpoint}"),
            *("--rdzv-conf=timeout=1", "wait.py"),
        ]
    )
    return Namespace(**{**vars(chosen), **changes})


def test_a_number_belongs_to_the_launcher_that_has_it_while_it_lives() -> None:
    store = serve_store(at_loopback=True)
    endpoint = f"{LOOPBACK}:{store.port}"
    with claimed(node(1, endpoint)), claimed(node(0, endpoint)):
        words = "got --node-rank=1, which process [0-9]+ on .* has already; expected another"
        with pytest.raises(UsageError, match=words), claimed(node(1, endpoint)):
            pass
        with claimed(node(1, endpoint, rdzv_id="another job")):
            pass
    with claimed(node(1, endpoint)):  # as a launcher that was interrupted and started again
        pass
    nobody = f"{LOOPBACK}:{free_port()}"
    words = "the nodes did not come together: node 0 did not come within 1 s.*--rdzv-endpoint of"
    with pytest.raises(LaunchError, match=words), claimed(node(1, nobody)):
        pass
    del store  # listens until here


def test_a_timeout_that_is_no_number_takes_one_line() -> None:
    words = "got --rdzv-conf timeout=x, expected a number of seconds"
    with pytest.raises(UsageError, match=words), claimed(node(1, "h:1", rdzv_conf="timeout=x")):
        pass
