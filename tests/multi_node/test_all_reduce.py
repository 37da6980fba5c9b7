"""What a host with several ranks sends to another."""

from __future__ import annotations

import pytest

from tests.multi_node.all_reduce_program import all_reduces
from tests.multi_node.hosts import Host

BYTES, TIMES = 4_000_000, 5
HEADERS = 1.05
"""Those of packets, and the replies to what comes."""


@pytest.mark.timeout(120)
def test_a_host_sends_as_much_as_a_single_rank_of_it_would(hosts: tuple[Host, Host]) -> None:
    """Between two hosts that is the tensor once: half as operands, half as results."""
    sent = {
        backend: all_reduces(hosts, ranks_per_host=2, backend=backend, nbytes=BYTES, times=TIMES)
        for backend in ("shm+gloo", "gloo")
    }
    assert all(1 <= share < HEADERS for share in sent["shm+gloo"].sent_shares)
    # A ring of four ranks: 2 · 3/4 across each link.
    assert all(1.4 < share < 1.5 * HEADERS for share in sent["gloo"].sent_shares)


@pytest.mark.timeout(120)
def test_bf16_halves_the_bytes_between_hosts(hosts: tuple[Host, Host]) -> None:
    """A leader sends half of the elements and half of the results. On gloo, the two ranks of a host
    send a quarter of each to both ranks on the other."""
    for backend, expected in (("shm+gloo", 0.5), ("gloo", 1.0)):
        sent = all_reduces(
            hosts,
            ranks_per_host=2,
            backend=backend,
            nbytes=BYTES,
            times=TIMES,
            hook="bf16-feedback",
        )
        for share in sent.sent_shares:
            assert expected <= share < expected * HEADERS, backend
