"""Which backends can be used, with the reason where not."""

from __future__ import annotations

import errno
import socket

import pytest
import torch
import torch.distributed as dist

import dpbench
from dpbench.rendezvous.available_backends import missing_reason


def test_each_backend_is_usable_or_says_why_not() -> None:
    found = dpbench.available_backends()
    assert set(found) == {"gloo", "nccl", "shm", "shm+gloo"}
    assert found["gloo"].usable
    assert all(there.usable == (there.reason is None) for there in found.values())
    if not torch.cuda.is_available():
        assert not found["nccl"].usable


@pytest.mark.parametrize(
    ("function", "backend", "reason"),
    [
        ("is_available", "shm", "torch was built without torch.distributed"),
        ("is_gloo_available", "gloo", "torch was built without gloo"),
        ("is_nccl_available", "nccl", "torch was built without nccl"),
    ],
)
def test_what_torch_was_built_without_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, function: str, backend: str, reason: str
) -> None:
    monkeypatch.setattr(dist, function, lambda: False)
    assert missing_reason(backend, 2) == reason


@pytest.mark.parametrize("backend", ["gloo", "shm", "shm+gloo"])
def test_ranks_of_a_host_without_loopback_cannot_talk(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a new network namespace, where gloo finds no address of lo."""

    def unreachable(*_: object) -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(socket.socket, "connect", unreachable)
    reason = missing_reason(backend, 0) or ""
    assert reason.startswith(
        "ranks talk over 127.0.0.1, and this host cannot (Network is unreachable)"
    )
    assert reason.endswith("ip link set lo up, or set GLOO_SOCKET_IFNAME to another interface")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    assert missing_reason(backend, 0) is None


def test_nccl_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    assert missing_reason("nccl", 0) == "nccl needs a CUDA device; this machine has none"
    assert missing_reason("nccl", 1) is None
