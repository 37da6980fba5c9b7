"""Creates new groups for torch.distributed: their ranks meet and share memory."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from dpbench.parallel.shm import memory
from dpbench.parallel.shm.member import Member
from dpbench.parallel.shm.memory import Layout
from dpbench.parallel.shm.process_group import ShmProcessGroup


def create(options: Any, backend_options: Any) -> ShmProcessGroup:
    """Create a group, as torch.distributed's callback for this backend; a collective.

    Args:
        options: torch's DistributedBackendOptions.
        backend_options: must be None.

    Raises:
        OSError: rank 0 could not create the memory.
        RuntimeError: a rank is missing; on every rank: they are not on one host, or one of them
            could not open the memory.
        ValueError: backend options are given, but this backend has none.
    """
    if backend_options is not None:
        raise ValueError(f"backend 'shm' has no options, got {backend_options!r}")
    if sys.platform != "linux":
        raise RuntimeError(f"backend 'shm' needs Linux (memfd), got {sys.platform}; use gloo")
    rank, layout = options.group_rank, Layout(options.group_size)
    names = [f"rank {number}" for number in options.global_ranks_in_group or range(layout.size)]
    member, descriptor, problem = None, -1, ""
    with ExitStack() as on_error:
        if rank == 0:
            descriptor = memory.create(layout)
            on_error.callback(os.close, descriptor)
        own = json.dumps([os.getpid(), descriptor, host_key(), os.uname().nodename])
        identities = map(json.loads, _exchange("identity", own, options))
        pids, descriptors, hosts, nodes = zip(*identities, strict=True)
        for name, host, node in zip(names, hosts, nodes, strict=True):
            if host != hosts[0]:
                raise RuntimeError(
                    "backend 'shm' joins processes of one host and one PID namespace, but "
                    f"{name} is on another host or in another container ({node}) than {names[0]} "
                    f"({nodes[0]}); use gloo or nccl"
                )
        try:
            if rank > 0:
                descriptor = memory.open_of(pids[0], descriptors[0])
                on_error.callback(os.close, descriptor)
            member = Member(layout, descriptor, rank, pids, names)
        except (OSError, psutil.NoSuchProcess) as error:
            problem = f"{names[rank]}: {error}"
        # When this passes, all ranks have opened the memory, so rank 0 may leave.
        problems = "; ".join(filter(None, _exchange("problem", problem, options)))
        if member is None or problems:
            raise RuntimeError(f"backend 'shm' could not share memory: {problems}")
        on_error.pop_all()
    return ShmProcessGroup(member, options.store, options.timeout)


def _exchange(topic: str, own: str, options: Any) -> list[str]:
    """The texts of all ranks on a topic, in the store that only this group uses."""
    keys = [f"{topic}/{peer}" for peer in range(options.group_size)]
    options.store.set(keys[options.group_rank], own)
    options.store.wait(keys, options.timeout)
    return [options.store.get(key).decode() for key in keys]


def host_key() -> str:
    """Equal for processes of one host and one container, which can open each other's memory.

    The kernel's boot id is the same for all containers of a machine, the PID namespace is not.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
