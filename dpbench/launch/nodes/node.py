"""A node of a sweep, and the address and network interface by which it reaches the others."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from dpbench import units
from dpbench.errors import UsageError
from dpbench.launch.machine import Machine
from dpbench.messages import Say
from dpbench.records.environment import Environment
from dpbench.rendezvous.launch_variables import GLOO_INTERFACE, endpoint_text

JOIN_TIMEOUT_SECONDS = 300.0
LOST_SECONDS = 10.0
"""Seconds without a sign of life after which a node counts as lost."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRequest:
    """The meeting place of the nodes of a sweep, and this node's number."""

    node_count: int
    node_rank: int
    host: str
    """Host of the endpoint: a name or an address of node 0."""
    port: int
    token: str = field(repr=False)
    """The secret of the sweep: anyone who does not prove it is told nothing."""
    token_is_new: bool = False
    """True if this node made the token, so that the others have to be told."""
    address: str | None = None
    """Address of this host: node 0 listens on it. None means the endpoint's address (node 0), or
    the address from which the endpoint is reached."""
    interface: str | None = None
    """The network interface for gloo and NCCL; None means the one that has the address."""
    join_timeout_seconds: float = JOIN_TIMEOUT_SECONDS
    lost_seconds: float = LOST_SECONDS

    @property
    def endpoint(self) -> str:
        return endpoint_text(self.host, self.port)


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One host of a sweep."""

    number: int
    address: str
    interface: str | None
    """The network interface; None if no interface of this host is known to have the address."""
    environment: Environment
    machine: Machine
    devices: tuple[str, ...]
    """Devices for the sweep, in the order in which replicas take them."""
    options: tuple[tuple[str, ...], ...] = ()
    """The command's options, as (name, value), that must be equal on all nodes."""

    @property
    def hostname(self) -> str:
        return self.environment.hostname

    @property
    def cores(self) -> int:
        return self.machine.cores

    @property
    def name(self) -> str:
        """Name for messages: "node 1 (host1)"."""
        return f"node {self.number} ({self.hostname})"


SIOCGIFADDR = 0x8915
"""Linux ioctl (netdevice(7)) that returns the IPv4 address of an interface."""
IFREQ_BYTES, ADDRESS_AT = 40, slice(20, 24)
IPV6_INTERFACES = Path("/proc/net/if_inet6")
AGAIN_SECONDS = 1.0
DISCARD_PORT = 9
"""Port of RFC 863: the kernel needs a port to connect to, though nothing is sent."""
NCCL_INTERFACE = "NCCL_SOCKET_IFNAME"

Resolved = tuple[int, tuple[Any, ...]]
"""Address family, and the address as socket calls take it."""


def this_node(
    request: NodeRequest,
    *,
    environment: Environment,
    machine: Machine,
    devices: Sequence[str],
    options: tuple[tuple[str, ...], ...] = (),
    say: Say = lambda _: None,
) -> Node:
    """Describe this host; finds out its address and interface where they were not given.

    A node other than 0 waits until the endpoint's name has an address: where containers start in
    any order, it has none until node 0 is there. Raises UsageError if it gets none in time, and
    for an address or interface that this host does not have.
    """
    if request.address is not None:
        address = _local(request.address)
    elif request.node_rank == 0:
        address = _own_of_endpoint(request)
    else:
        address = _towards_endpoint(request, say)
    if ip_address(_bare(address)).is_unspecified:
        raise UsageError(
            f"{address} stands for all addresses of this host; expected one that the other nodes "
            "can reach"
        )
    return Node(
        number=request.node_rank,
        address=address,
        interface=_interface(request, address),
        environment=environment,
        machine=machine,
        devices=tuple(devices),
        options=options,
    )


def interface_variables(request: NodeRequest, node: Node) -> tuple[tuple[str, str], ...]:
    """Variables that tell gloo and NCCL which interface to use; those that the user has set
    stay."""
    if node.interface is None:
        return ()
    exactly = f"={node.interface}"  # without "=" NCCL takes it as a prefix
    found = {GLOO_INTERFACE: node.interface, NCCL_INTERFACE: exactly}
    return tuple(
        (name, value)
        for name, value in found.items()
        if request.interface is not None or name not in os.environ
    )


def interface_towards(host: str) -> str | None:
    """The interface by which packets to `host` leave, or the one with that address if it is this
    host's own; None if there is none. No packet is sent."""
    with suppress(OSError):
        family, (address, _, *rest) = _resolve(host, 0)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as packets:
            packets.connect((address, DISCARD_PORT, *rest))
            return next(_interfaces_of(_text(packets.getsockname())), None)
    return None


def _own_of_endpoint(request: NodeRequest) -> str:
    """Address at which node 0 listens: the first address of the endpoint's name that is this
    host's."""
    try:
        found = _resolve(request.host, request.port)
    except OSError as error:
        raise UsageError(f"--rdzv-endpoint {request.endpoint}: {error.strerror}") from None
    for family, address in found:
        if _is_local(family, address):
            return _text(address)
    raise UsageError(
        f"--rdzv-endpoint {request.endpoint}: {_text(found[0][1])} is no address of this host; "
        "expected one of node 0, or --local-addr with the address to listen on"
    )


def _towards_endpoint(request: NodeRequest, say: Say) -> str:
    """The address from which this host's packets to the endpoint leave; none is sent."""
    deadline = time.monotonic() + request.join_timeout_seconds
    waited = False
    while True:
        try:
            family, endpoint = _resolve(request.host, request.port)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as packets:
                packets.connect(endpoint)
                return _text(packets.getsockname())
        except OSError as error:
            problem = f"--rdzv-endpoint {request.endpoint}: {error.strerror}"
        if time.monotonic() >= deadline:
            raise UsageError(f"{problem}, for {units.seconds(request.join_timeout_seconds)}")
        if not waited:
            say(f"{problem}; trying again for {units.seconds(request.join_timeout_seconds)}")
        waited = True
        time.sleep(AGAIN_SECONDS)


def _local(host: str) -> str:
    """The address of --local-addr; raises UsageError if it is not this host's."""
    try:
        found = _resolve(host, 0)
    except OSError as error:
        raise UsageError(f"--local-addr {host}: {error.strerror}") from None
    for family, address in found:
        if _is_local(family, address):
            return _text(address)
    raise UsageError(
        f"--local-addr {host}: no address of this host; expected one of its own, as "
        "`ip address` lists them"
    )


def _resolve(host: str, port: int) -> list[Resolved]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:  # a label that is too long, or empty
        raise OSError(0, "not the name of a host") from None
    return [(family, address) for family, _, _, _, address in found]


def _is_local(family: int, address: tuple[Any, ...]) -> bool:
    """Whether this host can listen on the address."""
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as packets:
        packets.bind((address[0], 0, *address[2:]))
        return True
    return False


def _text(address: tuple[Any, ...]) -> str:
    """The address alone; for a link-local one with its interface, as in "fe80::1%eth0"."""
    numbers = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
    return socket.getnameinfo(address, numbers)[0]


def _bare(address: str) -> str:
    return address.partition("%")[0]


def _interface(request: NodeRequest, address: str) -> str | None:
    """The interface: as given, else from gloo's environment variable, else the one with the
    address."""
    if request.interface is None:
        return os.environ.get(GLOO_INTERFACE) or next(_interfaces_of(address), None)
    names = [name for _, name in socket.if_nameindex()]
    if request.interface not in names:
        raise UsageError(
            f"--interface {request.interface}: this host has no such network interface; it has "
            f"{', '.join(names)}"
        )
    return request.interface


def _interfaces_of(address: str) -> Iterator[str]:
    """Names of the interfaces with this address, or of any loopback interface if it is a loopback
    address."""
    wanted = ip_address(_bare(address))
    for name, found in (*_ipv4_interfaces(), *_ipv6_interfaces()):
        alike = wanted.is_loopback and found.is_loopback and wanted.version == found.version
        if found == wanted or alike:
            yield name


def _ipv4_interfaces() -> Iterator[tuple[str, Any]]:
    """Names and addresses of the interfaces on Linux; only the first address of each."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            question = struct.pack(f"{IFREQ_BYTES}s", name.encode())
            with suppress(OSError):  # no address, or another system
                answer = fcntl.ioctl(any_socket, SIOCGIFADDR, question)
                yield name, ip_address(answer[ADDRESS_AT])


def _ipv6_interfaces() -> Iterator[tuple[str, Any]]:
    with suppress(OSError):
        for line in IPV6_INTERFACES.read_text().splitlines():
            digits, *_, name = line.split()
            yield name, ip_address(bytes.fromhex(digits))
