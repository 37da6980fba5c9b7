"""Which ranks share a host, and who leads them."""

from __future__ import annotations

from dpbench.parallel.hosts.membership import Hosts, host_key


def test_hosts_are_in_the_order_of_their_lowest_ranks() -> None:
    hosts = Hosts.of(["b", "a", "b", "c", "a"], rank=4)
    assert hosts.ranks == ((0, 2), (1, 4), (3,))
    assert (hosts.rank, hosts.host, hosts.local, hosts.size) == (4, 1, (1, 4), 5)
    assert [hosts.host_of(rank) for rank in range(5)] == [0, 1, 0, 2, 1]


def test_the_lowest_rank_of_a_host_leads() -> None:
    keys = ["b", "a", "b", "c", "a"]
    assert [Hosts.of(keys, rank).is_leader for rank in range(5)] == [True, True, False, True, False]


def test_processes_of_one_host_have_one_key() -> None:
    assert host_key() == host_key()
