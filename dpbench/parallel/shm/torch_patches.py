"""Patches of torch's functions that only know torch's own backends."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

c10d: Any = distributed_c10d
OUR_BACKENDS = ("shm", "shm+gloo")


def accept_shm() -> None:
    """Make torch functions that only know torch's own backends accept groups of this one too.

    `torch.distributed.monitored_barrier` rejects groups other than gloo's, and `_set_pg_timeout`
    ignores them, although this backend has the needed methods. For other groups torch's functions
    still run. The patch is applied when the first group of this backend is made.
    """
    for name, instead in (("monitored_barrier", _barrier), ("_set_pg_timeout", _set_timeout)):
        theirs = getattr(c10d, name)
        if not hasattr(theirs, "takes_shm"):
            ours = _for_shm(theirs, instead)
            setattr(c10d, name, ours)
            if getattr(dist, name, None) is theirs:
                setattr(dist, name, ours)


def _for_shm(theirs: Callable[..., None], instead: Callable[..., bool]) -> Callable[..., None]:
    @functools.wraps(theirs)
    def function(*arguments: Any, **named: Any) -> None:
        if not instead(*arguments, **named):
            theirs(*arguments, **named)

    function.takes_shm = True  # type: ignore[attr-defined]
    return function


def _barrier(
    group: Any = None, timeout: Any = None, wait_all_ranks: bool = False, *_: Any, **__: Any
) -> bool:
    """Run the barrier if the group is of this backend; returns whether it was run."""
    group = dist.group.WORLD if group is None else group
    if not _is_shm(group) or "cpu" not in group.device_types:
        return False
    group.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)
    return True


def _set_timeout(timeout: timedelta, group: Any = None, *_: Any, **__: Any) -> bool:
    group = dist.group.WORLD if group is None else group
    if not _is_shm(group):
        return False
    group.set_timeout(timeout)
    return True


def _is_shm(group: Any) -> bool:
    # Compared by name: importing the class would make a cycle.
    return isinstance(group, dist.ProcessGroup) and group._get_backend_name() in OUR_BACKENDS
