"""A barrier with a label and a time limit, which names the ranks that did not come."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_process_group_store

from dpbench.parallel.groups import member_group, name_ranks

PASSED = "passed"


def barrier(
    label: str, *, timeout: timedelta, process_group: dist.ProcessGroup | None = None
) -> None:
    """Return when every rank of the group has called it.

    It goes through the group's store and no tensor, so it works with any backend, costs about a
    millisecond, and does not wait for a device.

    Args:
        label: says where in the program this is; it must be the same on all ranks.
        timeout: how long to wait for the others. The first rank that runs out of it decides for
            all: one that comes later gets the same error, not a barrier of its own.
        process_group: the ranks; None means the default group.

    Raises:
        RuntimeError: on every rank that called or will call it, with the missing ranks of the
            group and the label, or with the labels if they differ.
        ValueError: the timeout is not above zero.
    """
    if not isinstance(timeout, timedelta):
        raise TypeError(f"barrier {label!r}: got timeout={timeout!r}, expected a timedelta")
    if not timeout > timedelta():
        raise ValueError(f"barrier {label!r}: got timeout={timeout}, expected more than zero")
    group = member_group(process_group, "barrier")
    outcome = _Meeting(group).outcome(label, timeout)
    if outcome != PASSED:
        decided, _, reason = outcome.partition("\0")
        elsewhere = (
            "" if decided in ("", label) else f"; this rank came to barrier {label!r} instead"
        )
        raise RuntimeError(f"barrier {decided or label!r}: {reason}{elsewhere}")


class _Meeting:
    """One round of the barrier of a group: who has arrived, and how it ended.

    The rounds are numbered by a counter of each rank in the store, so that no state is kept here.
    The outcome is written once, by whoever first adds to "decisions"; adding is atomic.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._size = dist.get_world_size(group)
        self._rank = dist.get_rank(group)
        # Not public, but the one way to the store of a group whoever made it.
        self._store = PrefixStore("labelled_barrier", _get_process_group_store(group))
        self._round = self._store.add(f"rounds of {self._rank}", 1)

    def outcome(self, label: str, timeout: timedelta) -> str:
        store = self._store
        store.set(self._key(self._rank), label)
        if store.add(self._key("arrivals"), 1) == self._size:
            self._decide(self._compare_labels())
        try:
            store.wait([self._key("outcome")], timeout)
        except RuntimeError:  # what time ran out raises depends on the kind of store
            self._decide(self._describe_missing(label, timeout))
        outcome = str(store.get(self._key("outcome")).decode())
        if outcome == PASSED:
            self._forget(self._round - 1)
        return outcome

    def _decide(self, outcome: str) -> None:
        if self._store.add(self._key("decisions"), 1) == 1:
            self._store.set(self._key("outcome"), outcome)

    def _describe_missing(self, label: str, timeout: timedelta) -> str:
        ranks = range(self._size)
        missing = [rank for rank in ranks if not self._store.check([self._key(rank)])]
        if not missing:  # the last one came in this moment
            return self._compare_labels()
        seconds = f"{timeout.total_seconds():g} s"
        return f"{label}\0{name_ranks(missing)} did not come within {seconds}"

    def _compare_labels(self) -> str:
        labels = [self._store.get(self._key(rank)).decode() for rank in range(self._size)]
        apart = [rank for rank, label in enumerate(labels) if label != labels[0]]
        if not apart:
            return PASSED
        return f"\0rank 0 is at {labels[0]!r}, but {name_ranks(apart)} at {labels[apart[0]]!r}"

    def _forget(self, number: int) -> None:
        """Deletes the keys of the round before, which all have left, as all came to this one."""
        mine = [self._rank, *(("arrivals", "decisions", "outcome") if self._rank == 0 else ())]
        for what in mine:
            self._store.delete_key(self._key(what, number))

    def _key(self, what: object, number: int | None = None) -> str:
        return f"round {self._round if number is None else number}, {what}"
