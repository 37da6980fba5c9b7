"""A torch.distributed store that listens on one address only, on a port nobody else can take."""

from __future__ import annotations

import socket

from torch.distributed import TCPStore  # type: ignore[attr-defined]

LOOPBACK = "127.0.0.1"


def serve_store(address: str, port: int = 0) -> TCPStore:
    """A store at `address`, an IP address of this host; it ends with its last user. Port 0 is a
    free one. Raises OSError.

    Left to itself torch listens on every address of the host. Whoever asks torch for a store on
    the same port in this process gets this one (`multi_tenant`).
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family)
    port = listener.getsockname()[1]
    return TCPStore(
        address, port, is_master=True, multi_tenant=True, master_listen_fd=listener.detach()
    )
