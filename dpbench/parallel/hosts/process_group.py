"""The process group that torch.distributed uses for the backend "shm+gloo", and its creation."""

# mypy: disable-error-code="override"

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from dpbench.parallel.compilation import not_compiled
from dpbench.parallel.hosts import membership
from dpbench.parallel.hosts.carrier import Carrier
from dpbench.parallel.hosts.collectives import HostsCollectives
from dpbench.parallel.hosts.membership import Hosts
from dpbench.parallel.shm.arena import Arena
from dpbench.parallel.shm.creation import exchange, join, names_of
from dpbench.parallel.shm.failures import HARMLESS
from dpbench.parallel.shm.issuer import Issuer
from dpbench.parallel.shm.member import Member, Steps
from dpbench.parallel.shm.process_group import CollectiveGroup, ShmProcessGroup

NAME = "shm+gloo"


@not_compiled
class HostsProcessGroup(CollectiveGroup):
    """A process group of ranks on several Linux hosts.

    What has no form for hosts goes over gloo: gather, scatter and all_to_all.
    """

    def __init__(
        self,
        hosts: Hosts,
        member: Member,
        leaders: Carrier | None,
        everyone: Carrier,
        store: Any,
        timeout: timedelta,
    ) -> None:
        """Use `torch.distributed.init_process_group("shm+gloo")`.

        Args:
            hosts: where the ranks are.
            member: this rank's place on its host.
            leaders: reaches the other leaders; None unless this rank is one.
            everyone: reaches all ranks.
            store: used by this group alone.
            timeout: for operations that name none.
        """
        issuer = Issuer(member, timeout)
        # A leader that computes must not keep the other hosts waiting for its next chunk.
        issuer.collectives.is_urgent_always = True
        shared = Arena(member, issuer)
        across = HostsCollectives(hosts, member, shared, leaders, everyone)
        super().__init__(across, member, issuer, store, shared)
        self._issue = _breaking(issuer.start)

    def getBackendName(self) -> str:  # noqa: N802
        return NAME


def _breaking(start: Callable[..., dist.Work]) -> Callable[..., dist.Work]:
    """Start collectives so that every failure breaks the group.

    After a mismatch the ranks of one host could go on, but the other hosts wait for them.
    """

    def started(name: str, steps: Steps[None], *arguments: Any) -> dist.Work:
        return start(name, _failing(steps), *arguments)

    return started


def _failing(steps: Steps[None]) -> Steps[None]:
    try:
        yield from steps
    except HARMLESS as error:
        raise dist.DistBackendError(str(error)) from error


def create(options: Any, backend_options: Any) -> CollectiveGroup:
    """Create a group, as torch.distributed's callback for this backend; a collective.

    Args:
        options: torch's DistributedBackendOptions.
        backend_options: must be None.

    Returns:
        A group of the backend "shm" if all ranks are on one host.

    Raises:
        RuntimeError: on every rank: the ranks of a host cannot share memory.
        ValueError: backend options are given, but this backend has none.
    """
    if backend_options is not None:
        raise ValueError(f"backend {NAME!r} has no options, got {backend_options!r}")
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
        leaders = Carrier(among, hosts.host, len(hosts.ranks), timeout, member, one_way=True)
    everyone = Carrier(PrefixStore("everyone", store), rank, hosts.size, timeout, member)
    return HostsProcessGroup(hosts, member, leaders, everyone, store, timeout)
