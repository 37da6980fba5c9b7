"""Creates new groups for torch.distributed: its ranks meet and share memory."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from dpbench.parallel.shm import memory, semaphores
from dpbench.parallel.shm.member import Member
from dpbench.parallel.shm.memory import Layout
from dpbench.parallel.shm.peers import Identity, Peers
from dpbench.parallel.shm.process_group import ShmProcessGroup


def join(store: Any, rank: int, names: Sequence[str], backend: str, timeout: timedelta) -> Member:
    """Meet the other ranks; a collective.

    Args:
        store: a torch.distributed.Store that only this group uses.
        rank: this process's rank.
        names: names of all ranks of the group, for messages.
        backend: name of the group's backend, for messages.
        timeout: limit for all ranks to join.

    Raises:
        RuntimeError: on every rank: they are not on one host, or one could not open the memory.
    """
    if sys.platform != "linux":
        raise RuntimeError(
            f"backend {backend!r} needs Linux (memfd, pidfd), this is {sys.platform}; use gloo"
        )
    layout = Layout.of(len(names))
    descriptor = _new_memory(layout) if rank == 0 else -1
    try:
        own = json.dumps(asdict(Identity.of_this_process(descriptor)))
        texts = exchange(store, "identity", own, rank, names, backend, timeout)
        identities = [Identity(**json.loads(text)) for text in texts]
        _require_one_host(identities, names)
        member, problem = None, ""
        try:
            member = _open(layout, rank, identities, names, backend)
        except OSError as error:
            problem = f"{names[rank]} (pid {os.getpid()}): {error}"
        problems = exchange(store, "problem", problem, rank, names, backend, timeout)
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    if any(problems) or member is None:
        if member is not None:
            member.peers.close()
        raise RuntimeError(
            f"backend {backend!r} could not share memory between the ranks, which must be "
            f"processes of one user; use gloo otherwise. {'; '.join(filter(None, problems))}"
        )
    return member


def _new_memory(layout: Layout) -> int:
    descriptor = memory.create(layout.nbytes)
    # Rank 0 maps it first, so that every flag is initialised before anybody else sees it.
    mapping = memory.map_and_close(os.dup(descriptor), layout.nbytes)
    start = memory.as_tensor(mapping).data_ptr()
    for first in range(layout.size):
        for second in range(layout.size):
            semaphores.initialise(start + layout.collective_flag(first, second), 0)
    return descriptor


def _open(
    layout: Layout, rank: int, identities: Sequence[Identity], names: Sequence[str], backend: str
) -> Member:
    first = identities[0]
    descriptor = memory.open_of(first.pid, first.memory)
    mapping = memory.map_and_close(descriptor, layout.nbytes)
    peers = Peers([identity.pid for identity in identities], rank)
    return Member(layout, mapping, rank, peers, names, backend)


def exchange(
    store: Any,
    topic: str,
    text: str,
    rank: int,
    names: Sequence[str],
    backend: str,
    timeout: timedelta,
) -> list[str]:
    """Exchange a text on a topic; returns the text of every rank."""
    store.set(f"{topic}/{rank}", text)
    keys = [f"{topic}/{peer}" for peer in range(len(names))]
    try:
        store.wait(keys, timeout)
    except RuntimeError as error:
        missing = [name for name, key in zip(names, keys, strict=True) if not store.check([key])]
        raise RuntimeError(
            f"{', '.join(missing) or 'a rank'} did not join the {backend!r} group of "
            f"{len(names)} within {timeout.total_seconds():g} s"
        ) from error
    return [store.get(key).decode() for key in keys]


def _require_one_host(identities: Sequence[Identity], names: Sequence[str]) -> None:
    first = identities[0]
    for name, other in zip(names, identities, strict=True):
        if (other.boot, other.namespace) != (first.boot, first.namespace):
            what = "another host" if other.boot != first.boot else "another container"
            raise RuntimeError(
                f"backend 'shm' joins processes of one host and one PID namespace, but {name} is "
                f"on {what} ({other.host}) than {names[0]} ({first.host}); use gloo or nccl"
            )


def create(options: Any, backend_options: Any) -> ShmProcessGroup:
    """Create a group, as torch.distributed's callback for this backend; a collective.

    Args:
        options: torch's DistributedBackendOptions.
        backend_options: must be None.

    Raises:
        RuntimeError: on every rank: the ranks cannot share memory.
        ValueError: backend options are given, but this backend has none.
    """
    if backend_options is not None:
        raise ValueError(f"backend 'shm' has no options, got {backend_options!r}")
    member = join(options.store, options.group_rank, names_of(options), "shm", options.timeout)
    return ShmProcessGroup(member, options.store, options.timeout)


def names_of(options: Any) -> list[str]:
    """Names of the ranks of a new group, for messages."""
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    return [
        f"rank {rank}" if rank == number else f"rank {number} of the group (global rank {rank})"
        for number, rank in enumerate(ranks)
    ]
