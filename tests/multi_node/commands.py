"""dpbench as it is typed on each of two hosts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cli.command import environment
from tests.multi_node.hosts import ADDRESSES, Host

PORT = 29503
"""Nothing else listens on a host that was made a moment ago."""
BUSY_SECONDS = 150
"""Longer than anything takes, even on a machine that does ten things at once."""


def start(host: Host, *words: str, folder: Path, **variables: str) -> subprocess.Popen[str]:
    """Runs dpbench on the host; what it says goes to a file of its own."""
    output = (folder / f"{host.number}.txt").open("a")
    with output:
        return subprocess.Popen(
            host.command(sys.executable, "-m", "dpbench", *words),
            env=environment() | variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )


@contextmanager
def sweeping(
    hosts: Sequence[Host], *words: str, folder: Path
) -> Iterator[list[subprocess.Popen[str]]]:
    """The same sweep on each host, but for the number of the node."""
    meeting = ("--nnodes", str(len(hosts)), "--rdzv-endpoint", f"{ADDRESSES[0]}:{PORT}")
    with ended(
        start(
            host,
            *("sweep", *meeting, "--node-rank", str(host.number), *words),
            *("--results-dir", str(folder)),
            folder=folder,
            DPBENCH_TOKEN="a-token-of-the-tests",
        )
        for host in hosts
    ) as commands:
        yield commands


@contextmanager
def ended(commands: Iterable[subprocess.Popen[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Whatever still runs at the end is killed, and with it what it has started."""
    started = list(commands)
    try:
        yield started
    finally:
        for command in started:
            command.kill()
            command.wait()


def statuses(commands: Sequence[subprocess.Popen[str]]) -> list[int]:
    """How each ended."""
    return [command.wait(BUSY_SECONDS) for command in commands]


def said(folder: Path, host: int) -> str:
    """All that dpbench has said on that host."""
    return (folder / f"{host}.txt").read_text()
