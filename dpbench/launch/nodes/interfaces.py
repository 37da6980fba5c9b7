"""Addresses and network interfaces of this host."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

SIOCGIFADDR = 0x8915
"""Linux ioctl (netdevice(7)) that returns the IPv4 address of an interface."""
IFREQ_BYTES, ADDRESS_AT = 40, slice(20, 24)
IPV6_INTERFACES = Path("/proc/net/if_inet6")
DISCARD_PORT = 9
"""Port of RFC 863: the kernel needs a port to connect to, though nothing is sent."""
Resolved = tuple[int, tuple[Any, ...]]
"""Address family, and the address as socket calls take it."""


def interface_towards(host: str) -> str | None:
    """The interface by which packets to `host` leave, or the one with that address if it is this
    host's own; None if there is none. No packet is sent."""
    with suppress(OSError):
        family, (address, _, *rest) = resolve(host, 0)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as packets:
            packets.connect((address, DISCARD_PORT, *rest))
            return next(interfaces_of(address_text(packets.getsockname())), None)
    return None


def resolve(host: str, port: int) -> list[Resolved]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:  # a label that is too long, or empty
        raise OSError(0, "not the name of a host") from None
    return [(family, address) for family, _, _, _, address in found]


def is_local(family: int, address: tuple[Any, ...]) -> bool:
    """Whether this host can listen on the address."""
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as packets:
        packets.bind((address[0], 0, *address[2:]))
        return True
    return False


def address_text(address: tuple[Any, ...]) -> str:
    """The address alone; for a link-local one with its interface, as in "fe80::1%eth0"."""
    numbers = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
    return socket.getnameinfo(address, numbers)[0]


def bare_address(address: str) -> str:
    return address.partition("%")[0]


def interfaces_of(address: str) -> Iterator[str]:
    """Names of the interfaces with this address, or of any loopback interface if it is a loopback
    address."""
    wanted = ip_address(bare_address(address))
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
