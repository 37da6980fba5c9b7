"""What a host with several ranks sends to another."""

from __future__ import annotations

import pytest

from tests.multi_node.all_reduce_program import Crossings, Way, all_reduces
from tests.multi_node.conftest import FAST_LINK
from tests.multi_node.hosts import two_hosts

pytestmark = pytest.mark.slow

BYTES, TIMES = 4_000_000, 5
HEADERS = 1.05
"""Those of packets, and the replies to what comes."""
BF16 = "bf16-feedback"
WAYS = (Way("shm+gloo"), Way("gloo"), Way("shm+gloo", BF16), Way("gloo", BF16))


@pytest.fixture(scope="module")
def sent() -> dict[Way, Crossings]:
    """Each way in turn on two ranks of each host, which take seconds to start."""
    with two_hosts(bits_per_second=FAST_LINK) as hosts:
        found = all_reduces(hosts, *WAYS, ranks_per_host=2, nbytes=BYTES, times=TIMES)
    return dict(zip(WAYS, found, strict=True))


@pytest.mark.timeout(120)
def test_a_host_sends_as_much_as_a_single_rank_of_it_would(sent: dict[Way, Crossings]) -> None:
    """Between two hosts that is the tensor once: half as operands, half as results."""
    assert all(1 <= share < HEADERS for share in sent[Way("shm+gloo")].sent_shares)
    # A ring of four ranks: 2 · 3/4 across each link.
    assert all(1.4 < share < 1.5 * HEADERS for share in sent[Way("gloo")].sent_shares)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("backend", "expected"), [("shm+gloo", 0.5), ("gloo", 1.0)])
def test_bf16_halves_the_bytes_between_hosts(
    sent: dict[Way, Crossings], backend: str, expected: float
) -> None:
    """A leader sends half of the elements and half of the results. On gloo, the two ranks of a host
    send a quarter of each to both ranks on the other."""
    for share in sent[Way(backend, BF16)].sent_shares:
        assert expected <= share < expected * HEADERS
