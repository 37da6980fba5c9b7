"""The ranks of one host can be reached by nobody on the network, and meet where nobody else can."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dpbench.launch.ranks import run_ranks
from dpbench.measure.rank_group import rank_group
from tests.ports import listening

LIMIT_SECONDS = 60


def seen_by_a_rank(backend: str, launcher: int, rank: int) -> dict[str, object]:
    """What a rank finds open while its group works."""
    before = listening(launcher)
    with rank_group(backend, 2):
        dist.all_reduce(torch.ones(1))
        store = Path(os.environ["DPBENCH_STORE_FILE"])
        return {
            "launcher": before,
            "ranks": listening(os.getpid()),
            "modes": [oct(path.stat().st_mode & 0o077) for path in store.parents[:1]],
            "store": store,
        }


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_ranks_listen_on_loopback_only_and_meet_in_a_folder_of_their_own(
    tmp_path: Path, backend: str
) -> None:
    mine = listening(os.getpid())
    found = run_ranks(partial(seen_by_a_rank, backend, os.getpid()), 2, tmp_path, LIMIT_SECONDS)
    for seen in found:
        assert seen["launcher"] == mine  # no store is served
        assert {address for address, _ in seen["ranks"]} <= {"127.0.0.1", "::1"}
        assert seen["modes"] == ["0o0"]
        assert not seen["store"].exists()  # by now


def interface(rank: int) -> str | None:
    return os.environ.get("GLOO_SOCKET_IFNAME")


def test_an_interface_that_the_user_has_chosen_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    assert run_ranks(interface, 1, tmp_path, LIMIT_SECONDS) == ["eth7"]
