"""Creates new groups for torch.distributed: their ranks meet and share memory."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from dpbench.parallel.shm import memory, semaphores
from dpbench.parallel.shm.member import Member
from dpbench.parallel.shm.memory import Layout
from dpbench.parallel.shm.peers import Peers, host_key
from dpbench.parallel.shm.process_group import ShmProcessGroup


def create(options: Any, backend_options: Any) -> ShmProcessGroup:
    """Create a group, as torch.distributed's callback for this backend; a collective.

    Args:
        options: torch's DistributedBackendOptions.
        backend_options: must be None.

    Raises:
        RuntimeError: on every rank: they are not on one host, or one could not open the memory.
        ValueError: backend options are given, but this backend has none.
    """
    if backend_options is not None:
        raise ValueError(f"backend 'shm' has no options, got {backend_options!r}")
    if sys.platform != "linux":
        raise RuntimeError(
            f"backend 'shm' needs Linux (memfd, pidfd), got {sys.platform}; use gloo"
        )
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    names = [
        f"rank {rank}" if rank == number else f"rank {number} of the group (global rank {rank})"
        for number, rank in enumerate(ranks)
    ]
    member = _join(options.store, options.group_rank, names, options.timeout)
    return ShmProcessGroup(member, options.store, options.timeout)


def _join(store: Any, rank: int, names: Sequence[str], timeout: timedelta) -> Member:
    """Meet the other ranks in a store that only this group uses, and open the group's memory."""
    layout = Layout(len(names))
    descriptor = _new_memory(layout) if rank == 0 else -1
    peers, member, problem = None, None, ""
    try:
        own = json.dumps([os.getpid(), descriptor, host_key(), os.uname().nodename])
        texts = _exchange(store, "identity", own, rank, names, timeout)
        pids, numbers, keys, hosts = zip(*map(json.loads, texts), strict=True)
        for name, key, host in zip(names, keys, hosts, strict=True):
            if key != keys[0]:
                raise RuntimeError(
                    "backend 'shm' joins processes of one host and one PID namespace, but "
                    f"{name} is on another host or in another container ({host}) than {names[0]} "
                    f"({hosts[0]}); use gloo or nccl"
                )
        try:
            peers = Peers(pids, rank)
            mapping = memory.map_and_close(memory.open_of(pids[0], numbers[0]), layout.nbytes)
            member = Member(layout, mapping, rank, peers, names)
        except OSError as error:
            problem = f"{names[rank]} (pid {os.getpid()}): {error}"
        # When this passes all ranks have opened the memory, so rank 0 may close it.
        problems = _exchange(store, "problem", problem, rank, names, timeout)
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    if member is None or any(problems):
        if peers is not None:
            peers.close()
        raise RuntimeError(
            "backend 'shm' could not share memory: " + "; ".join(filter(None, problems))
        )
    return member


def _new_memory(layout: Layout) -> int:
    """Create the memory of a group, with its semaphores, and return its descriptor."""
    descriptor = memory.create(layout.nbytes)
    mapping = memory.as_bytes(memory.map_and_close(os.dup(descriptor), layout.nbytes))
    for poster in range(layout.size):
        for taker in range(layout.size):
            semaphores.initialise(mapping.data_ptr() + layout.semaphore(poster, taker))
    return descriptor


def _exchange(
    store: Any, topic: str, text: str, rank: int, names: Sequence[str], timeout: timedelta
) -> list[str]:
    """Exchange a text on a topic; returns the text of every rank."""
    store.set(f"{topic}/{rank}", text)
    keys = [f"{topic}/{peer}" for peer in range(len(names))]
    try:
        store.wait(keys, timeout)
    except RuntimeError as error:
        missing = [name for name, key in zip(names, keys, strict=True) if not store.check([key])]
        raise RuntimeError(
            f"{', '.join(missing) or 'a rank'} did not join the 'shm' group of {len(names)} within "
            f"{timeout.total_seconds():g} s"
        ) from error
    return [store.get(key).decode() for key in keys]
