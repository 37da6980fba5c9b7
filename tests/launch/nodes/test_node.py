"""A node knows by which address and interface the others meet it."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from dpbench.errors import UsageError
from dpbench.launch.nodes.node import (
    Node,
    NodeRequest,
    interface_towards,
    interface_variables,
    this_node,
)
from tests.launch.nodes.builders import ENVIRONMENT, MACHINE, node, request

IPV6 = pytest.mark.skipif(
    "lo" not in Path("/proc/net/if_inet6").read_text(), reason="this host's loopback has no IPv6"
)
ELSEWHERE = "192.0.2.77"
"""Of a network that is kept for examples: no host has it."""


@pytest.fixture(autouse=True)
def _no_interface_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)


def found(asked: NodeRequest, **options: Any) -> Node:
    return this_node(asked, environment=ENVIRONMENT, machine=MACHINE, devices=("cpu",), **options)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("host", "address"),
    [("127.0.0.1", "127.0.0.1"), ("localhost", None), pytest.param("::1", "::1", marks=IPV6)],
)
def test_the_endpoint_tells_address_and_interface(
    rank: int, host: str, address: str | None
) -> None:
    me = found(request(rank, 29503, host=host))
    assert me.address == address or (address is None and me.address in ("127.0.0.1", "::1"))
    assert me.interface == "lo"


def test_another_address_of_the_loopback_is_on_its_interface() -> None:
    assert found(request(0, host="127.0.1.1")).interface == "lo"


def test_a_given_address_goes_before_the_endpoint() -> None:
    me = found(request(1, 29503, host=ELSEWHERE, address="127.0.0.2"))
    assert (me.address, me.interface) == ("127.0.0.2", "lo")


def test_node_0_must_be_where_the_endpoint_is() -> None:
    with pytest.raises(UsageError, match=rf"{ELSEWHERE} is no address of this host.*--local-addr"):
        found(request(0, 29503, host=ELSEWHERE))


@pytest.mark.parametrize("asked", [request(0, host="0.0.0.0"), request(1, address="0.0.0.0")])
def test_every_address_at_once_is_none(asked: NodeRequest) -> None:
    with pytest.raises(UsageError, match=r"0\.0\.0\.0 stands for all addresses of this host"):
        found(asked)


def test_a_given_address_must_be_of_this_host() -> None:
    with pytest.raises(UsageError, match=f"--local-addr {ELSEWHERE}: no address of this host"):
        found(request(1, 29503, address=ELSEWHERE))


def test_an_interface_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(UsageError, match=r"--interface eth77: .* it has .*lo"):
        found(request(1, 29503, interface="eth77"))


@pytest.mark.parametrize("name", ["no_such_host.invalid", "x" * 300])
def test_a_name_without_an_address_is_an_error_after_the_time_to_join(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    if name.endswith(".invalid"):
        monkeypatch.setattr(socket, "getaddrinfo", unknown)  # no test may ask a name server
    said: list[str] = []
    for rank in (0, 1):
        asked = request(rank, 29503, host=name, join_timeout_seconds=0.0)
        with pytest.raises(UsageError, match="--rdzv-endpoint"):
            found(asked, say=said.append)


def test_a_name_may_get_its_address_later(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve, errors = socket.getaddrinfo, [socket.gaierror(socket.EAI_NONAME, "not known")]

    def later(*arguments: Any, **options: Any) -> Any:
        if errors:
            raise errors.pop()
        return resolve(*arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", later)
    monkeypatch.setattr("dpbench.launch.nodes.node.AGAIN_SECONDS", 0.01)
    said: list[str] = []
    assert found(request(1, 29503), say=said.append).address == "127.0.0.1"
    assert said == ["--rdzv-endpoint 127.0.0.1:29503: not known; trying again for 10 s"]


def test_the_interface_towards_an_own_address_is_the_one_that_has_it() -> None:
    assert interface_towards("127.0.0.1") == "lo"
    assert interface_towards("no.such.host.invalid") is None


def test_ranks_are_told_the_interface_unless_the_user_has(monkeypatch: pytest.MonkeyPatch) -> None:
    assert interface_variables(request(0), node(0)) == (
        ("GLOO_SOCKET_IFNAME", "lo"),
        ("NCCL_SOCKET_IFNAME", "=lo"),
    )
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0,ib1")
    assert interface_variables(request(0), node(0)) == (("GLOO_SOCKET_IFNAME", "lo"),)
    assert len(interface_variables(request(0, interface="lo"), node(0))) == 2
    assert interface_variables(request(0), node(0, interface=None)) == ()


def test_what_gloo_was_told_in_the_environment_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth1")
    assert found(request(0)).interface == "eth1"
    assert found(request(0, interface="lo")).interface == "lo"
    assert "GLOO_SOCKET_IFNAME" in os.environ
