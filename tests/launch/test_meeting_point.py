"""A store listens where it was told to, and torch takes it instead of one of its own."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from dpbench.launch.meeting_point import LOOPBACK, serve_store

IPV6 = pytest.mark.skipif(
    "lo" not in Path("/proc/net/if_inet6").read_text(), reason="this host's loopback has no IPv6"
)


def listening_at(port: int) -> list[str]:
    return [
        each.laddr.ip
        for each in psutil.Process().net_connections()
        if each.status == psutil.CONN_LISTEN and each.laddr.port == port
    ]


@pytest.mark.parametrize("address", [LOOPBACK, pytest.param("::1", marks=IPV6)])
def test_it_listens_at_one_address_and_answers_there(address: str) -> None:
    store = serve_store(address)
    assert listening_at(store.port) == [address]
    client = TCPStore(address, store.port, timeout=timedelta(seconds=10))
    client.set("key", "value")
    assert store.get("key") == b"value"


def test_whoever_asks_for_a_store_at_its_port_gets_it() -> None:
    """As torch's agent does, which would listen at all addresses of the host."""
    store = serve_store(LOOPBACK)
    store.set("key", "value")
    agents = TCPStore(LOOPBACK, store.port, 1, is_master=True, multi_tenant=True)
    assert agents.get("key") == b"value"
    assert listening_at(store.port) == [LOOPBACK]
