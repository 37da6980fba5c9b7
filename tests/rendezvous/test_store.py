"""Where the processes of a launch meet."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from dpbench.rendezvous.launch_variables import LOOPBACK, LaunchVariables
from dpbench.rendezvous.store import STORE_FILE, STORE_PREFIX, open_store, serve_store

SECONDS = timedelta(seconds=10)


def test_keys_are_under_a_prefix_that_only_those_know_who_were_told() -> None:
    served = serve_store(at_loopback=True)
    place = LaunchVariables(rank=1, world_size=2, address=LOOPBACK, port=served.port)
    told = open_store(place, {STORE_PREFIX: "a secret"}, SECONDS)
    told.set("address", "of a rank")
    untold = open_store(place, {}, SECONDS)
    assert not untold.check(["address"])
    stranger = TCPStore(LOOPBACK, served.port, is_master=False, timeout=SECONDS)
    assert not stranger.check(["address"])
    assert stranger.check(["a secret, attempt 0/address"])


def test_a_rank_whose_launcher_has_removed_its_folder_does_not_wait_for_it(tmp_path: Path) -> None:
    place = LaunchVariables(rank=0, world_size=1, address=LOOPBACK, port=1)
    with pytest.raises(RuntimeError, match="the launcher has ended"):
        open_store(place, {STORE_FILE: str(tmp_path / "gone" / "store")}, SECONDS)
