"""The store of `dpbench launch`, held by node 0, and the node numbers in it.

For one node torch would use its c10d rendezvous, which listens at all addresses and unpickles
values from the store: anyone who reached the port could run code.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
import uuid
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
from torch.distributed import run as torchrun
from torch.distributed.elastic.rendezvous.utils import (
    _parse_rendezvous_config,
    parse_rendezvous_endpoint,
)

from dpbench.errors import LaunchError, UsageError
from dpbench.messages import Say, printable
from dpbench.rendezvous.launch_variables import LOOPBACK, USUAL_PORT, endpoint_text
from dpbench.rendezvous.store import reach_store, serve_store

NO_ID = "none"
"""torchrun's job id without --rdzv-id."""
UNPICKLES = (
    "--rdzv-backend c10d: torch executes what whoever reaches its store puts there, and it listens "
    "at all addresses of its host; use it in a network that you trust, or --rdzv-backend static"
)
CONNECT_SECONDS = 2.0


def is_one_node(chosen: Namespace) -> bool:
    """Whether no other launcher takes part, and no other rendezvous was asked for."""
    return bool(chosen.standalone) or (
        torchrun.parse_min_max_nnodes(chosen.nnodes) == (1, 1) and chosen.rdzv_backend == "static"
    )


@contextmanager
def held(chosen: Namespace, say: Say) -> Iterator[Namespace]:
    """The options with a static rendezvous in a store that this process holds: at loopback for one
    node, at all addresses for node 0 of several.

    The options are unchanged if this launcher holds no store. Raises UsageError for a port that
    cannot be used.
    """
    alone = is_one_node(chosen)
    if not alone and (chosen.rdzv_backend != "static" or chosen.node_rank != 0):
        if chosen.rdzv_backend == "c10d":
            say(UNPICKLES)
        yield chosen
        return
    host, port = _place(chosen, port_otherwise=0 if alone else USUAL_PORT)
    try:
        if not alone and _answers(host, port):
            raise OSError(errno.EADDRINUSE, "something answers there already")
        store = serve_store(port, at_loopback=alone)
    except OSError as error:
        raise UsageError(
            f"cannot listen at {endpoint_text(LOOPBACK if alone else host, port)}: "
            f"{os.strerror(error.errno or 0)}; expected a port that no other program has, nor "
            "another launcher with --node-rank 0"
        ) from None
    options = Namespace(**vars(chosen))
    options.standalone, options.rdzv_backend = False, "static"
    if alone:
        options.nnodes, options.node_rank = "1", 0
        options.rdzv_endpoint = endpoint_text(LOOPBACK, store.port)
        if chosen.rdzv_id == NO_ID:
            options.rdzv_id = uuid.uuid4().hex
    yield options
    del store  # until here torch's agent gets this store when it asks for one at this port


def _place(chosen: Namespace, *, port_otherwise: int) -> tuple[str, int]:
    """Address and port that were asked for."""
    if chosen.standalone or not chosen.rdzv_endpoint:
        return chosen.master_addr, chosen.master_port or port_otherwise
    return parse_rendezvous_endpoint(chosen.rdzv_endpoint, default_port=port_otherwise)


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


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
    host, port = _place(chosen, port_otherwise=USUAL_PORT)
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
