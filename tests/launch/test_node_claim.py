"""A node number belongs to one launcher at a time."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpbench.errors import LaunchError, UsageError
from dpbench.launch.node_claim import claimed
from dpbench.rendezvous.launch_variables import LOOPBACK
from dpbench.rendezvous.store import serve_store
from dpbench.run.sweep.nodes import free_port
from tests.cli.command import start

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # torch's own


@pytest.fixture
def endpoint() -> Iterator[str]:
    store = serve_store(LOOPBACK)
    yield f"{LOOPBACK}:{store.port}"
    del store  # listens until here


def node(number: int, endpoint: str, **changes: str) -> Namespace:
    return Namespace(
        **{
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


def test_a_node_0_that_does_not_come_is_one_line() -> None:
    nobody = f"{LOOPBACK}:{free_port(LOOPBACK)}"
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
    place = f"--rdzv-endpoint={LOOPBACK}:{free_port(LOOPBACK)}"
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
