"""Two hosts on one machine, each with a network and processes of its own, joined by a slow link.

A host is a network, process, mount and hostname namespace that a sleeping process holds open. It
sleeps in a read from a pipe of whoever made the hosts: when that one ends, even by kill -9, the
read does, and the kernel removes the namespaces with all that is in them: processes, devices,
queues. Nothing has a name outside, so nothing can be left behind or collide.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import psutil

ROOT = Path(__file__).parents[2]

INTERFACE = "eth0"
ADDRESSES = ("10.0.0.1", "10.0.0.2")
TOOLS = ("unshare", "nsenter", "ip", "tc")

BURST_BYTES = 16 * 1024
"""What the token bucket lets through at once after a pause. A message gets that much for nothing,
so it is small beside a bucket of gradients, and still holds a whole packet of the sender."""
MAX_PACKET_BYTES = 12 * 1024
"""As the sender hands it to the queue, to be cut into frames later, as network cards do it."""
QUEUE_SECONDS = 0.1
"""Longer than TCP's window takes to be sent, so that no packet is dropped."""


@dataclass(frozen=True, slots=True)
class Host:
    """A place to start processes in."""

    number: int
    address: str
    holder_pid: int

    def command(self, *words: str) -> list[str]:
        """The same command on this host, in the folder of the repository."""
        return ["nsenter", "--all", f"--target={self.holder_pid}", f"--wd={ROOT}", *words]

    def sent_bytes(self) -> int:
        """Over the link so far."""
        for line in Path(f"/proc/{self.holder_pid}/net/dev").read_text().splitlines():
            name, _, counters = line.partition(":")
            if name.strip() == INTERFACE:
                return int(counters.split()[8])
        raise LookupError(INTERFACE)

    def set_link(self, state: Literal["down", "up"]) -> None:
        """Pulls the cable, which nobody is told, or puts it back."""
        _configure(self, "ip", "link", "set", INTERFACE, state)

    def kill_everything(self) -> None:
        """As when the power goes, but that the host itself stays."""
        subprocess.run(self.command("sh", "-c", "kill -9 -1"), check=False)


@cache
def unusable_reason() -> str | None:
    """Why this machine can have no hosts; None if it can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"needs {' and '.join(missing)}"
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    try:
        with two_hosts(bits_per_second=1e9):
            return None
    except subprocess.CalledProcessError as error:
        return f"namespaces cannot be made: {error.stderr.strip()}"


@contextmanager
def two_hosts(*, bits_per_second: float) -> Iterator[tuple[Host, Host]]:
    """Two hosts whose link carries so much in each direction at once.

    Raises CalledProcessError where the machine does not allow it.
    """
    with ExitStack() as stack:
        first, second = (stack.enter_context(_host(number)) for number in range(2))
        peer = ("peer", "name", INTERFACE, "netns", str(second.holder_pid))
        _configure(first, "ip", "link", "add", INTERFACE, "type", "veth", *peer)
        for host in (first, second):
            _connect(host, bits_per_second)
        yield first, second


@contextmanager
def _host(number: int) -> Iterator[Host]:
    # It waits for the end of its input, which leaving closes; the rest ends with the child.
    namespaces = ("--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
    hold = f"hostname host{number} && echo ready && exec cat"
    holder = subprocess.Popen(
        ["unshare", *namespaces, "sh", "-c", hold],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stderr is not None
        if not holder.stdout.readline():
            error = holder.stderr.read()
            raise subprocess.CalledProcessError(holder.wait(), holder.args, stderr=error)
        (child,) = psutil.Process(holder.pid).children()
        yield Host(number, ADDRESSES[number], child.pid)


def _connect(host: Host, bits_per_second: float) -> None:
    packets = ("gso_max_size", str(MAX_PACKET_BYTES))
    bucket = ("rate", f"{bits_per_second:.0f}bit", "burst", f"{BURST_BYTES}b")
    queue = ("latency", f"{QUEUE_SECONDS * 1e3:.0f}ms")
    _configure(host, "ip", "link", "set", "lo", "up")
    _configure(host, "ip", "addr", "add", f"{host.address}/24", "dev", INTERFACE)
    _configure(host, "ip", "link", "set", INTERFACE, *packets, "up")
    _configure(host, "tc", "qdisc", "add", "dev", INTERFACE, "root", "tbf", *bucket, *queue)


def _configure(host: Host, *words: str) -> None:
    """In the network of the host only, so that processes keep the numbers they have outside."""
    command = ["nsenter", "--net", f"--target={host.holder_pid}", *words]
    subprocess.run(command, check=True, capture_output=True, text=True)
