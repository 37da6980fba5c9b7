"""The store of `dpbench launch`, held by node 0, and the node ranks in it.

For one node torch would use its c10d rendezvous, which listens at all addresses and unpickles
values from the store: anyone who reached the port could run code.
"""

from __future__ import annotations

import os
import socket
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from time import monotonic_ns

from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed import run as torchrun
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from dpbench.errors import LaunchError, UsageError
from dpbench.messages import printable
from dpbench.rendezvous.launch_variables import LOOPBACK, USUAL_PORT, endpoint_text
from dpbench.rendezvous.store import reach_store, serve_store

USUAL_SECONDS = 600  # torch's own
RELEASE_SECONDS = 1.0
LONGEST_NAME = 200


def is_one_node(chosen: Namespace) -> bool:
    """Whether no other launcher takes part, and no other rendezvous was asked for."""
    return bool(chosen.standalone) or (
        torchrun.parse_min_max_nnodes(chosen.nnodes) == (1, 1) and chosen.rdzv_backend == "static"
    )


@contextmanager
def held(chosen: Namespace) -> Iterator[Namespace]:
    """The options with a static rendezvous in a store that this process holds: at loopback for one
    node, at all addresses for node 0 of several.

    The options are unchanged if this launcher holds no store. Raises UsageError for a port that
    cannot be used.
    """
    alone = is_one_node(chosen)
    if not alone and (chosen.rdzv_backend != "static" or chosen.node_rank != 0):
        yield chosen
        return
    _, port = _endpoint(chosen, port_otherwise=0 if alone else USUAL_PORT)
    try:
        store = serve_store(port, at_loopback=alone)
    except OSError as error:
        raise UsageError(
            f"cannot listen at port {port}: {os.strerror(error.errno or 0)}; expected a port that "
            "no other program has, nor another launcher with --node-rank 0"
        ) from None
    options = Namespace(**vars(chosen))
    options.standalone, options.rdzv_backend = False, "static"
    if alone:
        options.nnodes, options.node_rank = "1", 0
        options.rdzv_endpoint = endpoint_text(LOOPBACK, store.port)
    yield options
    del store  # until here torch's agent gets this store when it asks for one at this port


@contextmanager
def claimed(chosen: Namespace) -> Iterator[None]:
    """A context in which this launcher holds its node rank.

    Raises UsageError if another launcher has it, LaunchError if node 0 cannot be reached.
    """
    pairs = (pair.split("=", 1) for pair in chosen.rdzv_conf.split(",") if "=" in pair)
    options = {key.strip(): value.strip() for key, value in pairs}
    try:
        timeout = timedelta(seconds=int(options.get("timeout", USUAL_SECONDS)))
    except (ValueError, OverflowError):
        raise UsageError(
            f"got --rdzv-conf timeout={options['timeout']}, expected a number of seconds"
        ) from None
    host, port = _endpoint(chosen, port_otherwise=USUAL_PORT)
    try:
        reached = reach_store(host, port, "node 0", timeout, compare="--rdzv-endpoint of all nodes")
    except RuntimeError as error:
        raise LaunchError(f"the nodes did not come together: {error}") from None
    store = PrefixStore(f"dpbench launch {chosen.rdzv_id}", reached)
    key = f"launcher of node {chosen.node_rank}"
    own = f"process {os.getpid()} on {socket.gethostname()}, {monotonic_ns()}"
    holder = store.compare_set(key, "", own).decode(errors="replace")
    if holder != own:
        raise UsageError(
            f"got --node-rank={chosen.node_rank}, which {printable(holder, LONGEST_NAME)} has "
            "already; expected another number on every node"
        )

    def release() -> None:
        with suppress(RuntimeError):  # node 0 is gone, and with it the launch
            store.delete_key(key)

    try:
        yield
    finally:
        releasing = threading.Thread(target=release, name="node-rank", daemon=True)
        releasing.start()
        releasing.join(RELEASE_SECONDS)  # over a cut link it would wait long


def _endpoint(chosen: Namespace, *, port_otherwise: int) -> tuple[str, int]:
    """Address and port that were asked for."""
    if chosen.standalone or not chosen.rdzv_endpoint:
        return chosen.master_addr, chosen.master_port or port_otherwise
    return parse_rendezvous_endpoint(chosen.rdzv_endpoint, default_port=port_otherwise)
