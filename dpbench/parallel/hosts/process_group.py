"""The process group that torch.distributed uses for the backend "shm+gloo", and its creation."""

# mypy: disable-error-code="override"

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
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
from dpbench.parallel.shm.operand import Operand, only
from dpbench.parallel.shm.process_group import CollectiveGroup, ShmProcessGroup
from dpbench.parallel.shm.work import NO_TIMEOUT

NAME = "shm+gloo"


@not_compiled
class HostsProcessGroup(CollectiveGroup):
    """A process group of ranks on several Linux hosts.

    Messages between two ranks go over gloo, and with them what has no form for hosts: gather,
    scatter, all_to_all, and sums of sparse tensors.
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
        self._everyone = everyone.gloo

    def getBackendName(self) -> str:  # noqa: N802
        return NAME

    def send(self, tensors: list[Tensor], receiver: int, tag: int) -> dist.Work:
        source = Operand(only(tensors))
        if (copy := source.awaited) is not None:
            copy.wait()
        work: dist.Work = self._everyone.send([source.flat.view(torch.uint8)], receiver, tag)
        return work

    def recv(self, tensors: list[Tensor], sender: int, tag: int) -> dist.Work:
        return self._received(self._everyone.recv, tensors, sender, tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> dist.Work:
        return self._received(self._everyone.recv_anysource, tensors, tag)

    def _received(
        self, receive: Callable[..., dist.Work], tensors: list[Tensor], *rest: int
    ) -> dist.Work:
        target = Operand(only(tensors), read=False, write=True)
        work = receive([target.flat.view(torch.uint8)], *rest)
        return work if target.is_direct else _Received(work, target)


@not_compiled
class _Received(dist.Work):
    """A message on its way to a tensor that gloo cannot write to."""

    def __init__(self, work: dist.Work, target: Operand) -> None:
        super().__init__()
        self._work = work
        self._target = target

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        self._work.wait(timeout)
        self._target.store()
        self._target.synchronize()
        return True

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())

    def _source_rank(self) -> int:
        return int(self._work._source_rank())


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
