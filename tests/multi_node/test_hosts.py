"""Two hosts are apart, joined by a link of the given rate, and gone with whoever made them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.multi_node.hosts import ADDRESSES, PAYLOAD_SHARE, ROOT, Host, two_hosts

RECEIVE = """
import socket, sys, time
with socket.create_server((sys.argv[1], 5000)) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    received, start = len(connection.recv(2**20)), time.perf_counter()
    while part := connection.recv(2**20):
        received += len(part)
    print(received / (time.perf_counter() - start))
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 5000)) as connection:
    connection.sendall(bytes(int(sys.argv[2])))
"""
MAKER = """
import subprocess, time
from tests.multi_node.hosts import two_hosts
with two_hosts(bits_per_second=1e9) as hosts:
    inside = [subprocess.Popen(host.command("sleep", "60")) for host in hosts]
    time.sleep(0.2)  # until they have entered
    print(*(host.holder_pid for host in hosts), flush=True)
    time.sleep(60)
"""


def start(host: Host, program: str, *arguments: str) -> subprocess.Popen[str]:
    command = host.command(sys.executable, "-c", program, *arguments)
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def bytes_per_second(sender: Host, receiver: Host, nbytes: int) -> float:
    with start(receiver, RECEIVE, receiver.address) as receiving:
        assert receiving.stdout is not None
        assert receiving.stdout.readline() == "ready\n"
        with start(sender, SEND, receiver.address, str(nbytes)) as sending:
            assert sending.wait(timeout=20) == 0
        return float(receiving.stdout.readline())


def test_hosts_have_names_and_processes_of_their_own() -> None:
    with two_hosts(bits_per_second=1e9) as hosts:
        for host in hosts:
            words = subprocess.check_output(
                host.command("sh", "-c", "hostname; ls -d /proc/[0-9]*"), text=True
            ).split()
            assert words[0] == f"host{host.number}"
            assert str(os.getpid()) not in {Path(word).name for word in words[1:]}


@pytest.mark.alone
def test_the_link_carries_what_it_was_given_in_each_direction() -> None:
    rate = 200e6
    with two_hosts(bits_per_second=rate) as (first, second):
        for sender, receiver in ((first, second), (second, first)):
            share = bytes_per_second(sender, receiver, 5_000_000) / (rate / 8 * PAYLOAD_SHARE)
            # A busy machine leaves the link idle, or looks late at what has arrived.
            assert 0.7 < share < 1.1


def test_hosts_end_with_whoever_made_them_and_all_that_runs_on_them() -> None:
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with maker:
        try:
            assert maker.stdout is not None
            networks = {network_of(int(pid)) for pid in maker.stdout.readline().split()}
            names = [process.name() for process in inside(networks)]
            assert len(networks) == names.count("sleep") == len(ADDRESSES)
        finally:
            maker.kill()
    assert eventually(lambda: not inside(networks))


def inside(networks: set[Path | None]) -> list[psutil.Process]:
    """Processes on one of these networks."""
    return [one for one in psutil.process_iter() if network_of(one.pid) in networks]


def network_of(pid: int) -> Path | None:
    """None for a process that has ended."""
    try:
        return Path(f"/proc/{pid}/ns/net").readlink()
    except OSError:
        return None


def eventually(true: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
