"""What a host with several ranks sends to another."""

from __future__ import annotations

import pytest

from tests.multi_node.all_reduce_program import Crossings, all_reduces
from tests.multi_node.conftest import FAST_LINK
from tests.multi_node.hosts import two_hosts

pytestmark = pytest.mark.full

BYTES, TIMES = 4_000_000, 5
HEADERS = 1.05
"""Those of packets, and the replies to what comes."""
WAYS = ("hierarchical", "gloo")


@pytest.fixture(scope="module")
def sent() -> dict[str, Crossings]:
    """Each way in turn on two ranks of each host, which take seconds to start."""
    with two_hosts(bits_per_second=FAST_LINK) as hosts:
        found = all_reduces(hosts, *WAYS, ranks_per_host=2, nbytes=BYTES, times=TIMES)
    return dict(zip(WAYS, found, strict=True))


@pytest.mark.timeout(120)
def test_a_host_sends_as_much_as_a_single_rank_of_it_would(sent: dict[str, Crossings]) -> None:
    """Between two hosts that is the tensor once: half as operands, half as results."""
    assert all(1 <= share < HEADERS for share in sent["hierarchical"].sent_shares)
    # A ring of four ranks: 2 · 3/4 across each link.
    assert all(1.4 < share < 1.5 * HEADERS for share in sent["gloo"].sent_shares)
