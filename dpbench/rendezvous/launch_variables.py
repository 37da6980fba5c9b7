"""The environment variables that give a process its place in a launch: made, and read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

LOOPBACK = "127.0.0.1"
USUAL_PORT = 29500  # torch's own
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
"""The variable with the network interface that gloo takes."""
LAUNCH_REMEDY = "start it with torchrun or dpbench launch"

LARGEST_PORT = 65_535
OF_WORKERS = {
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_RUN_ID": "dpbench",
    "TORCHELASTIC_USE_AGENT_STORE": "True",  # no rank serves the store
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
}
"""Variables that torchrun sets beside the place of a worker, the same for all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchVariables:
    """The rank of this process, the number of processes, and their meeting place."""

    rank: int
    world_size: int
    address: str
    port: int

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> LaunchVariables:
        """Read RANK, WORLD_SIZE, MASTER_ADDR (default 127.0.0.1) and MASTER_PORT (default 29500).

        Raises:
            ValueError: a variable is missing or invalid; the message has its name and value.
        """
        world_size = integer(environ, "WORLD_SIZE", 1)
        address = environ.get("MASTER_ADDR", LOOPBACK)
        if not address or any(letter.isspace() for letter in address):
            raise ValueError(
                f"got MASTER_ADDR={address!r}, expected the host of rank 0; {LAUNCH_REMEDY}"
            )
        return cls(
            rank=integer(environ, "RANK", 0, world_size - 1),
            world_size=world_size,
            address=address,
            port=integer(environ, "MASTER_PORT", 1, LARGEST_PORT)
            if "MASTER_PORT" in environ
            else USUAL_PORT,
        )


def endpoint_text(host: str, port: int) -> str:
    """The endpoint as people write it: "host0:29503", "[::1]:29503"."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_endpoint(text: str) -> tuple[str, int] | None:
    """Host and port of "host0:29503" or "[::1]:29503"; None for anything else."""
    with suppress(ValueError):  # of the port
        url = urlsplit(f"//{text.strip()}")
        if url.hostname and url.port:
            return url.hostname, url.port
    return None


def integer(
    environ: Mapping[str, str], name: str, smallest: int, largest: int | None = None
) -> int:
    """The variable `name` as an integer within the limits; ValueError with its value otherwise."""
    between = f"from {smallest} to {largest}" if largest is not None else f"of {smallest} or more"
    expected = f"expected an integer {between}; {LAUNCH_REMEDY}"
    if name not in environ:
        raise ValueError(f"the environment variable {name} is not set, {expected}")
    text = environ[name]
    value = int(text) if text.isascii() and text.isdecimal() else -1
    if value < smallest or (largest is not None and value > largest):
        raise ValueError(f"got {name}={text!r}, {expected}")
    return value
