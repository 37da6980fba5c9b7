"""Lets the ranks of a new group find each other and share memory."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from dpbench.parallel.shm import memory, semaphores
from dpbench.parallel.shm.layout import Layout
from dpbench.parallel.shm.member import Member
from dpbench.parallel.shm.peers import Identity, Peers


def join(store: Any, rank: int, size: int, timeout: timedelta, names: Sequence[str]) -> Member:
    """Meet the other ranks; a collective.

    Args:
        store: a torch.distributed.Store that only this group uses.
        rank: this process's rank.
        size: ranks in the group.
        timeout: limit for all ranks to join.
        names: names of the ranks, for messages.

    Raises:
        RuntimeError: on every rank: they are not on one host, or one could not open the memory.
    """
    if sys.platform != "linux":
        raise RuntimeError(
            f"backend 'shm' needs Linux (memfd, pidfd), this is {sys.platform}; use gloo"
        )
    layout = Layout.of(size)
    descriptor = _new_memory(layout) if rank == 0 else -1
    try:
        own = json.dumps(asdict(Identity.of_this_process(descriptor)))
        texts = exchange(store, "identity", own, rank, size, timeout, names)
        identities = [Identity(**json.loads(text)) for text in texts]
        _require_one_host(identities, names)
        member, problem = None, ""
        try:
            member = _open(layout, rank, identities, names)
        except OSError as error:
            problem = f"{names[rank]} (pid {os.getpid()}): {error}"
        problems = exchange(store, "problem", problem, rank, size, timeout, names)
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    if any(problems) or member is None:
        if member is not None:
            member.peers.close()
        raise RuntimeError(
            "backend 'shm' could not share memory between the ranks, which must be processes of "
            f"one user; use gloo otherwise. {'; '.join(filter(None, problems))}"
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
            semaphores.initialise(start + layout.full_flag(first, second), 0)
            semaphores.initialise(start + layout.free_flag(first, second), 2)
    return descriptor


def _open(
    layout: Layout, rank: int, identities: Sequence[Identity], names: Sequence[str]
) -> Member:
    first = identities[0]
    descriptor = memory.open_of(first.pid, first.memory)
    mapping = memory.map_and_close(descriptor, layout.nbytes)
    peers = Peers([identity.pid for identity in identities], rank)
    return Member(layout, mapping, rank, peers, names)


def exchange(
    store: Any,
    topic: str,
    text: str,
    rank: int,
    size: int,
    timeout: timedelta,
    names: Sequence[str],
) -> list[str]:
    """Exchange a text on a topic; returns the text of every rank."""
    store.set(f"{topic}/{rank}", text)
    keys = [f"{topic}/{peer}" for peer in range(size)]
    try:
        store.wait(keys, timeout)
    except RuntimeError as error:
        missing = [name for name, key in zip(names, keys, strict=True) if not store.check([key])]
        raise RuntimeError(
            f"{', '.join(missing) or 'a rank'} did not join the 'shm' group of {size} within "
            f"{timeout.total_seconds():g} s"
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
