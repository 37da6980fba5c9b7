"""Ports of this host for tests."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port of the loopback that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
