"""Creates new groups of the backend "shm+gloo" for torch.distributed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore

from dpbench.parallel.hosts import membership
from dpbench.parallel.hosts.carrier import Carrier
from dpbench.parallel.hosts.membership import Hosts
from dpbench.parallel.hosts.process_group import NAME, HostsProcessGroup
from dpbench.parallel.shm.creation import devices_of, exchange, join, names_of
from dpbench.parallel.shm.failures import accept_shm
from dpbench.parallel.shm.process_group import CollectiveGroup, ShmProcessGroup


def create(options: Any, backend_options: Any) -> CollectiveGroup:
    """Create a group, as torch.distributed's callback for this backend; a collective.

    Args:
        options: torch's DistributedBackendOptions.
        backend_options: must be None.

    Returns:
        A group of the backend "shm" if all ranks are on one host.

    Raises:
        RuntimeError: on every rank: the ranks of a host cannot share memory.
        ValueError: backend options are given, or another backend for some devices.
    """
    accept_shm()
    if backend_options is not None:
        raise ValueError(f"backend {NAME!r} has no options, got {backend_options!r}")
    if others := {device: name for device, name in devices_of().items() if name != NAME}:
        raise ValueError(
            f"backend {NAME!r} takes the tensors of all devices, got {others} beside it; make a "
            "second group for the other backend"
        )
    rank, store, timeout = options.group_rank, options.store, options.timeout
    names = names_of(options)
    keys = exchange(store, "host", membership.host_key(), rank, names, NAME, timeout)
    hosts = Hosts.of(keys, rank)
    local, here = hosts.local, PrefixStore(f"host {hosts.host}", store)
    member = join(here, local.index(rank), [names[other] for other in local], NAME, timeout)
    if len(hosts.ranks) == 1:
        return ShmProcessGroup(member, store, timeout)
    leaders = None
    if hosts.is_leader:
        among = PrefixStore("leaders", store)
        leaders = Carrier(among, hosts.host, len(hosts.ranks), timeout, member)
    everyone = Carrier(PrefixStore("everyone", store), rank, hosts.size, timeout, member)
    return HostsProcessGroup(hosts, member, leaders, everyone, store, timeout)


def each_alone(store: Any, rank: int, size: int, timeout: timedelta) -> HostsProcessGroup:
    """A group of its own, over gloo, in which every rank counts as a host; a collective.

    Args:
        store: used by this group alone.
        rank, size: of this process, and the number of ranks, at least 2.
        timeout: to connect, and for each operation.
    """
    hosts = Hosts.of([str(number) for number in range(size)], rank)
    here = PrefixStore(f"host {rank}", store)
    member = join(here, 0, [f"rank {rank}"], "gloo", timeout)
    leaders = Carrier(PrefixStore("leaders", store), rank, size, timeout, member)
    return HostsProcessGroup(hosts, member, leaders, leaders, store, timeout)
