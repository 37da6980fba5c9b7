"""The store in which the processes of a launch meet.

The ranks that dpbench starts on one host meet in a file, which only their owner can read. Under
torchrun or dpbench launch the store is the launcher's. Otherwise rank 0 holds it and listens only
at the given address; if the name is none of its host's, it listens at all addresses, and reports
that.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from ipaddress import ip_address

from torch.distributed import FileStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from dpbench.rendezvous.launch_variables import LOOPBACK, LaunchVariables, endpoint_text

PAUSE_SECONDS = 0.05
STORE_FILE = "DPBENCH_STORE_FILE"
"""The environment variable that names the file in which the ranks of one host meet."""
STORE_PREFIX = "DPBENCH_STORE_PREFIX"
"""The environment variable with the prefix of keys, if only some processes may know it."""

_stores: dict[tuple[int, str, int], TCPStore] = {}
"""Stores by process, address and port. They live as long as the process: a rank that is ahead may
ask for the next group while rank 0 has not left this one, and would find a store that ends."""


def open_store(variables: LaunchVariables, environ: Mapping[str, str], timeout: timedelta) -> Store:
    """The store of this launch; this waits only for the process that holds it.

    Raises:
        RuntimeError: this process cannot hold it, or it is not there within `timeout`.
    """
    store: Store
    if path := environ.get(STORE_FILE):
        # Without a number of workers it stays when they leave; the launcher removes its folder.
        store = FileStore(path)
    else:
        store = _over_tcp(variables, environ, timeout)
    store.set_timeout(timeout)
    # A launcher that restarts its ranks keeps the store, with the keys of the first ones.
    attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefix = environ.get(STORE_PREFIX, "process_group")
    return PrefixStore(f"{prefix}, attempt {attempt}", store)


def _over_tcp(
    variables: LaunchVariables, environ: Mapping[str, str], timeout: timedelta
) -> TCPStore:
    key = (os.getpid(), variables.address, variables.port)
    of_launcher = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if key not in _stores:
        if variables.rank == 0 and not of_launcher:
            _stores[key] = _hold(variables.address, variables.port, timeout)
        else:
            holder = "the launcher" if of_launcher else "rank 0"
            _stores[key] = reach_store(variables.address, variables.port, holder, timeout)
    return _stores[key]


def _hold(address: str, port: int, timeout: timedelta) -> TCPStore:
    try:
        listener = _listen(address, port)
    except OSError as error:
        remedy = "MASTER_ADDR must be an address of this host, where rank 0 is"
        if error.errno == errno.EADDRINUSE:
            remedy = (
                "either another process was started with RANK=0 too, where each needs a RANK of "
                "its own, or another program has the port: then choose another MASTER_PORT"
            )
        raise RuntimeError(
            f"rank 0 cannot listen at {endpoint_text(address, port)}: {_words(error)}; {remedy}"
        ) from None
    return TCPStore(
        address,
        port,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def _listen(address: str, port: int) -> socket.socket:
    """Listen at exactly this IP address, or at the first of this host's addresses for the name.

    A host often resolves its own name to a loopback address, at which no other host would reach it;
    or the name belongs to a gateway. Then it listens at all addresses.
    """
    if address == "localhost":
        address = LOOPBACK
    if _is_ip(address):
        return _listen_at(address, port)
    for own in _addresses(address):
        if ip_address(own).is_loopback:
            continue
        try:
            return _listen_at(own, port)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
    print(
        f"rank 0 listens for the other ranks at all addresses of its host, as {address!r} stands "
        "for none of them here, or for loopback alone; an IP address as MASTER_ADDR narrows that",
        file=sys.stderr,
    )
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=both)


def _listen_at(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ip_address(address).version == 6 else socket.AF_INET
    return socket.create_server((address, port), family=family)


def _is_ip(address: str) -> bool:
    try:
        ip_address(address)
    except ValueError:
        return False
    return True


def _addresses(name: str) -> list[str]:
    """Addresses of the name in the order in which others would try them; OSError if there is
    none."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def serve_store(address: str, port: int = 0) -> TCPStore:
    """Open a store at `address`, an IP address of this host; it ends with its last user. Port 0
    means a free one. Raises OSError.

    By default torch listens on every address of the host. Code in this process that asks torch for
    a store on the same port gets this one (`multi_tenant`).
    """
    listener = _listen_at(address, port)
    port = listener.getsockname()[1]
    return TCPStore(
        address, port, is_master=True, multi_tenant=True, master_listen_fd=listener.detach()
    )


def reach_store(
    address: str,
    port: int,
    holder: str,
    timeout: timedelta,
    compare: str = "MASTER_ADDR and MASTER_PORT of all ranks",
) -> TCPStore:
    """The store that somebody else holds; RuntimeError if it is not there within `timeout`.

    Torch's own client takes twice the time to give up, and prints a hundred lines.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    while error := _refusal(address, port, deadline):
        if time.monotonic() + PAUSE_SECONDS >= deadline:
            raise RuntimeError(
                f"{holder} did not come within {timeout.total_seconds():g} s: it holds the store "
                f"at {endpoint_text(address, port)}, and there: {_words(error)}; look at its "
                f"output, and compare {compare}"
            )
        time.sleep(PAUSE_SECONDS)
    left = timedelta(seconds=max(deadline - time.monotonic(), 1.0))
    try:
        return TCPStore(address, port, is_master=False, timeout=left, wait_for_workers=False)
    except RuntimeError as error:
        raise RuntimeError(
            f"what listens at {endpoint_text(address, port)} is not the store of {holder}; "
            f"compare {compare}"
        ) from error


def _refusal(address: str, port: int, deadline: float) -> OSError | None:
    try:
        left = max(deadline - time.monotonic(), PAUSE_SECONDS)
        socket.create_connection((address, port), timeout=left).close()
    except OSError as error:
        return error
    return None


def _words(error: OSError) -> str:
    """The system's error text, without the additions of socket.create_server; only some errors have
    a number."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
