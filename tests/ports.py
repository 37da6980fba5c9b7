"""Ports of this host for tests."""

from __future__ import annotations

import random
import socket

import psutil

PORTS = range(15_000, 30_000)
"""Below those that the kernel gives to connections and to listeners that ask for any port: what
else runs at the same time does not take one of these before the test does."""


def free_port() -> int:
    """Return a port of the loopback that nobody listens at."""
    anywhere = random.SystemRandom()  # tests seed the shared generator alike in every worker
    while True:
        port = anywhere.choice(PORTS)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def listening(*pids: int) -> list[tuple[str, int]]:
    """Addresses and ports at which these processes listen."""
    return sorted(
        (connection.laddr.ip, connection.laddr.port)
        for pid in pids
        for connection in psutil.Process(pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    )
