"""The claim of a launcher to the number of its node, in the store of node 0.

Two launchers with one number would be a group that never comes together.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from secrets import token_hex

from torch.distributed import (  # type: ignore[attr-defined]
    PrefixStore,
    Store,
    TCPStore,
)
from torch.distributed.elastic.rendezvous.utils import (
    _parse_rendezvous_config,
    parse_rendezvous_endpoint,
)

from dpbench.errors import LaunchError, UsageError
from dpbench.messages import printable
from dpbench.rendezvous.store import reach_store

USUAL_SECONDS = 600  # torch's own
BEAT_SECONDS = 0.3
DEAD_SECONDS = 2.0
"""Seconds without a sign of life after which a launcher loses its number to the next one."""
LONGEST_NAME = 200


@contextmanager
def claimed(chosen: Namespace) -> Iterator[None]:
    """A context in which this launcher holds the number of its node.

    Raises UsageError if another launcher has it, LaunchError if node 0 cannot be reached.
    """
    store = PrefixStore(f"dpbench launch {chosen.rdzv_id}", _reach(chosen))
    own = f"process {os.getpid()} on {socket.gethostname()}, {token_hex(4)}"
    _claim(store, chosen.node_rank, own)
    over = threading.Event()
    beating = threading.Thread(
        target=_beat, args=(store, own, over), name="node-claim", daemon=True
    )
    beating.start()
    try:
        yield
    finally:
        over.set()
        beating.join(BEAT_SECONDS)  # over a cut link it would wait long


def _reach(chosen: Namespace) -> TCPStore:
    """The store of node 0, once it is there."""
    options = _parse_rendezvous_config(chosen.rdzv_conf)  # private, but what torchrun reads it by
    timeout = timedelta(seconds=int(options.get("timeout", USUAL_SECONDS)))
    endpoint = chosen.rdzv_endpoint or f"{chosen.master_addr}:{chosen.master_port}"
    host, port = parse_rendezvous_endpoint(endpoint, default_port=chosen.master_port)
    try:
        return reach_store(host, port, "node 0", timeout, compare="--rdzv-endpoint of all nodes")
    except RuntimeError as error:
        raise LaunchError(f"the nodes did not come together: {error}") from None


def _claim(store: Store, number: int, own: str) -> None:
    key = f"launcher of node {number}"
    holder = store.compare_set(key, "", own).decode(errors="replace")
    if holder != own and not _is_alive(store, holder):
        holder = store.compare_set(key, holder, own).decode(errors="replace")
    if holder != own:
        who = printable(holder.rpartition(",")[0], LONGEST_NAME)
        raise UsageError(
            f"got --node-rank={number}, which {who} has already; expected another number on every "
            "node"
        )


def _is_alive(store: Store, holder: str) -> bool:
    beats = store.add(_beats(holder), 0)
    time.sleep(DEAD_SECONDS)
    return store.add(_beats(holder), 0) != beats


def _beat(store: Store, own: str, over: threading.Event) -> None:
    with suppress(RuntimeError):  # node 0 is gone, and with it the launch
        while not over.wait(BEAT_SECONDS):
            store.add(_beats(own), 1)


def _beats(launcher: str) -> str:
    return f"signs of life of {launcher}"
