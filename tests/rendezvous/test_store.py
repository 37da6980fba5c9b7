"""Where the processes of a launch meet."""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from dpbench.rendezvous.launch_variables import LOOPBACK, LaunchVariables
from dpbench.rendezvous.store import STORE_PREFIX, open_store, serve_store

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
