"""The store in which the processes of a launch meet.

The ranks that dpbench starts on one node meet in a file, which only their owner can read. Under
torchrun or dpbench launch the store is the launcher's. Otherwise rank 0 holds it, at all addresses
of its host, as torch does; at loopback alone where the ranks meet there.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from pathlib import Path

from torch.distributed import FileStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from dpbench.errors import UsageError
from dpbench.rendezvous.barrier import wait_until
from dpbench.rendezvous.placement import LOOPBACK, Placement, endpoint_text

CONNECTING_SECONDS = 2.0
"""Longest time for one try to connect; the kernel repeats a lost packet after one second."""
_stores: dict[tuple[int, str, int], TCPStore] = {}
"""Stores by process, address and port. They live as long as the process: a rank that is ahead may
ask for the next group while rank 0 has not left this one, and would find a store that ends."""


def open_store(placement: Placement, timeout: timedelta) -> Store:
    """The store of this launch; this waits only for the process that holds it.

    Raises:
        UsageError: this process cannot hold it.
        RuntimeError: it is not there within `timeout`.
    """
    store: Store
    if path := placement.store_file:
        if not Path(path).parent.is_dir():
            # Torch would look for it until its timeout, and hold the GIL: nothing ends that but
            # SIGKILL.
            raise RuntimeError(f"the launcher has ended, and with it the store in {path}")
        # Without a number of workers it stays when they leave; the launcher removes its folder.
        store = FileStore(path)
    else:
        key = (os.getpid(), placement.address, placement.port)
        if key not in _stores:
            _stores[key] = tcp_store(placement, "rank 0", timeout)
        store = _stores[key]
    store.set_timeout(timeout)
    # A launcher that restarts its ranks keeps the store, with the keys of the first ones.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"{placement.store_prefix} attempt {attempt}", store)


def tcp_store(placement: Placement, first: str, timeout: timedelta) -> TCPStore:
    """The store at the address and port of a launch, which its launcher holds or else its first
    process, which messages call `first`. Raises as `open_store`."""
    address, port = placement.address, placement.port
    if placement.rank > 0 or placement.has_store:
        return reach_store(address, port, "the launcher" if placement.has_store else first, timeout)
    return serve_store(port, LOOPBACK if address in (LOOPBACK, "localhost") else "", timeout)


def serve_store(
    port: int = 0, host: str = LOOPBACK, timeout: timedelta = timedelta(minutes=5)
) -> TCPStore:
    """Open a store, which ends with its last user; port 0 means a free one. Raises UsageError for a
    port that is not free.

    It listens at `host`, or where that is empty at all addresses of this machine. Code in this
    process that asks torch for a store on the same port gets this one (`multi_tenant`).
    """
    both = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, dualstack_ipv6=both)
    except OSError as error:
        raise UsageError(
            f"cannot listen at port {port}: {os.strerror(error.errno or 0)}; expected a port that "
            "no other program has, nor another rank 0 or node 0"
        ) from None
    port = listener.getsockname()[1]
    return TCPStore(
        LOOPBACK,
        port,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=listener.detach(),
    )


def reach_store(address: str, port: int, holder: str, timeout: timedelta) -> TCPStore:
    """The store that somebody else holds; RuntimeError if it is not there within `timeout`.

    Torch's own client takes twice the time to give up, and prints a hundred lines.
    """
    trouble = ""

    def is_there() -> bool:
        nonlocal trouble
        try:
            socket.create_connection((address, port), CONNECTING_SECONDS).close()
        except OSError as error:
            trouble = error.strerror or str(error)
            return False
        return True

    if not wait_until(is_there, timeout.total_seconds()):
        raise RuntimeError(
            f"{holder} did not come within {timeout.total_seconds():g} s: it holds the store at "
            f"{endpoint_text(address, port)}, and there: {trouble}; look at its output, and "
            "compare that address with its own"
        )
    return TCPStore(address, port, is_master=False, timeout=timeout, wait_for_workers=False)
