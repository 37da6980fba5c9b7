"""Ranks that wait for each other in a store, at barriers with a name.

Every wait outside of a collective is `wait_until`: processes look into their store, or for another
process, until what they wait for is there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from dpbench.parallel.groups import member_group, name_ranks

DEFAULT_TIMEOUT = timedelta(seconds=120)
POLL_SECONDS = 0.1
"""Longest pause between two looks at what the kernel cannot wait for."""
PASSED = "passed"
LINGER_SECONDS = 0.5
"""Seconds that a rank stays after a failure, so that the others hear of it: it may hold the
store."""


def wait_for_ranks(store: Store, rank: int, size: int, label: str, timeout: timedelta) -> None:
    """Wait for all of the `size` ranks that share the store; it needs no process group.

    The first rank that runs out of time decides for all: one that comes later gets the same
    failure, not a barrier of its own. Raises RuntimeError with the ranks that did not come, or that
    came with another label.
    """
    store = PrefixStore("barriers", store)
    # Barriers are numbered by a counter of each rank in the store, so that no state is kept here.
    number = store.add(f"barriers of {rank}", 1)
    labels = [f"barrier {number}, rank {each}" for each in range(size)]
    result_key = f"barrier {number}, result"
    store.set(labels[rank], label)
    missing = [*range(size)]

    def is_decided() -> object:
        missing[:] = [each for each in missing if not store.check([labels[each]])]
        return not missing or store.check([result_key])

    seconds = timeout.total_seconds()
    wait_until(is_decided, seconds)
    if missing:
        result = f"{label!r}: {name_ranks(missing)} did not come within {seconds:g} s"
    else:
        reached = [store.get(key).decode() for key in labels]
        others = [each for each in range(size) if reached[each] != reached[0]]
        result = PASSED
        if others:
            elsewhere = reached[others[0]]
            result = f"rank 0 is at {reached[0]!r}, but {name_ranks(others)} at {elsewhere!r}"
    store.compare_set(result_key, "", result)  # the first one counts
    result = store.get(result_key).decode()
    if result != PASSED:
        time.sleep(LINGER_SECONDS)
        raise RuntimeError(result)
    # All ranks have left the previous barrier, as all came to this one.
    store.delete_key(f"barrier {number - 1}, rank {rank}")
    if rank == 0:
        store.delete_key(f"barrier {number - 1}, result")


def wait_until(is_over: Callable[[], object], seconds: float = math.inf) -> bool:
    """Return True when `is_over` does, or False after so many seconds.

    The pause between two calls is a tenth of the wait so far, so that a short wait ends soon and a
    long one costs little. A store's own wait would need none, but Ctrl-C does not interrupt it.
    """
    began = time.monotonic()
    while not is_over():
        waited = time.monotonic() - began
        if waited >= seconds:
            return False
        time.sleep(min(max(waited / 10, 1e-4), POLL_SECONDS, seconds - waited))
    return True


def check_timeout(title: str, timeout: object) -> None:
    """Raise TypeError or ValueError, which begins with `title`, unless it is a time above zero."""
    if not isinstance(timeout, timedelta):
        raise TypeError(f"{title}: got timeout={timeout!r}, expected a timedelta")
    if not timeout > timedelta():
        raise ValueError(f"{title}: got timeout={timeout}, expected more than zero")


def barrier(
    label: str = "barrier",
    *,
    timeout: timedelta = DEFAULT_TIMEOUT,
    process_group: dist.ProcessGroup | None = None,
) -> None:
    """Return when every rank of the group has called it.

    It uses the group's store and no tensor, so it works with any backend, costs about a
    millisecond, and does not wait for a device.

    Args:
        label: says where in the program this is; it must be the same on all ranks.
        timeout: how long to wait for the others; the first rank that runs out of it decides for
            all.
        process_group: the ranks; None means the default group.

    Raises:
        RuntimeError: on every rank that called or will call it, with the missing ranks of the
            group and the label, or with the labels if they differ.
        ValueError: the timeout is not above zero.
    """
    check_timeout(f"barrier {label!r}", timeout)
    group = member_group(process_group, "barrier")
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    try:
        wait_for_ranks(group.get_group_store(), rank, size, label, timeout)
    except RuntimeError as error:
        raise RuntimeError(f"barrier {error}") from error.__cause__
