"""Ranks that wait for each other in a store: all of them, or for one that works alone.

A `Meeting` finds out who did not come. It needs no process group, so that ranks can meet before
they have one; `barrier` is the public form of it, for the ranks of a group.

`on_first_rank` lets one rank work alone for any length of time. In a collective the others would
give up after their group's timeout; here they wait for heartbeats, which a thread of the working
rank sends through the group's store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from dpbench.parallel.groups import member_group, name_ranks

T = TypeVar("T")

DEFAULT_TIMEOUT = timedelta(seconds=120)
LONGEST_PAUSE_SECONDS = 0.1
PASSED = "passed"
LINGER_SECONDS = 0.5
"""Seconds that a rank stays after a failure, until those who came know of it: it may hold the
store."""
SILENCE = timedelta(minutes=5)
"""Longest silence of the working rank: without a heartbeat for so long it counts as dead."""
BEAT_SECONDS = 0.5
"""Seconds between two heartbeats."""


class Meeting:
    """One round: the ranks that have come, and the outcome.

    The rounds are numbered by a counter of each rank in the store, so that no state is kept here.
    The outcome is written once, by whoever first adds to "decisions"; adding is atomic.
    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        """Begin the next round of this rank in the store, which all `size` ranks share."""
        self._size = size
        self._rank = rank
        self._store = PrefixStore("labelled_barrier", store)
        self.round = self._store.add(f"rounds of {rank}", 1)

    def hold(self, label: str, timeout: timedelta, *, since: float | None = None) -> str | None:
        """Wait for all ranks; None if they came, all with the same label, else what is wrong.

        `since` is when the timeout began, on the monotonic clock; None means now.

        The first rank that runs out of time decides for all: one that comes later gets the same
        failure, not a round of its own.
        """
        store, outcome = self._store, self._key("outcome")
        started = time.monotonic() if since is None else since
        store.set(self._key(self._rank), label)
        if store.add(self._key("arrivals"), 1) == self._size:
            self._decide(self._compare_labels())
        seconds = timeout.total_seconds()
        while not store.check([outcome]):
            waited = time.monotonic() - started
            if waited >= seconds:
                missing = [n for n in range(self._size) if not store.check([self._key(n)])]
                if missing:
                    absent = name_ranks(missing)
                    self._decide(f"{label!r}: {absent} did not come within {seconds:g} s")
                else:  # the last one came just now
                    self._decide(self._compare_labels())
                store.wait([outcome], timeout)  # another may be writing its own
                break
            time.sleep(min(pause_seconds(waited), seconds - waited))
        reason = str(store.get(outcome).decode())
        if reason == PASSED:
            # All ranks have left the previous round, as all came to this one.
            shared = ("arrivals", "decisions", "heard", "outcome") if self._rank == 0 else ()
            for what in (self._rank, *shared):
                store.delete_key(self._key(what, self.round - 1))
            return None
        deadline = time.monotonic() + LINGER_SECONDS
        heard = store.add(self._key("heard"), 1)
        while heard < store.add(self._key("arrivals"), 0) and time.monotonic() < deadline:
            time.sleep(LONGEST_PAUSE_SECONDS / 10)
            heard = store.add(self._key("heard"), 0)
        return reason

    def _decide(self, outcome: str) -> None:
        if self._store.add(self._key("decisions"), 1) == 1:
            self._store.set(self._key("outcome"), outcome)

    def _compare_labels(self) -> str:
        labels = [self._store.get(self._key(rank)).decode() for rank in range(self._size)]
        apart = [rank for rank, label in enumerate(labels) if label != labels[0]]
        if not apart:
            return PASSED
        return f"rank 0 is at {labels[0]!r}, but {name_ranks(apart)} at {labels[apart[0]]!r}"

    def _key(self, what: object, number: int | None = None) -> str:
        return f"round {self.round if number is None else number}, {what}"


def pause_seconds(waited_seconds: float) -> float:
    """Seconds until the next check: a tenth of the wait so far, so that a short wait ends soon and
    a long one costs little.

    A store's own wait would need no polling, but Ctrl-C does not interrupt it.
    """
    return min(max(waited_seconds / 10, 1e-4), LONGEST_PAUSE_SECONDS)


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
        timeout: how long to wait for the others. The first rank that runs out of it decides for
            all: one that comes later gets the same error, not a barrier of its own.
        process_group: the ranks; None means the default group.

    Raises:
        RuntimeError: on every rank that called or will call it, with the missing ranks of the
            group and the label, or with the labels if they differ.
        ValueError: the timeout is not above zero.
    """
    check_timeout(f"barrier {label!r}", timeout)
    group = member_group(process_group, "barrier")
    meeting = Meeting(group.get_group_store(), dist.get_rank(group), dist.get_world_size(group))
    if reason := meeting.hold(label, timeout):
        raise RuntimeError(f"barrier {reason}")


def on_first_rank(
    work: Callable[[], T],
    *,
    process_group: dist.ProcessGroup | None = None,
    silence: timedelta = SILENCE,
) -> T | None:
    """Call `work` on rank 0 of the group, and return when it has ended; a collective.

    It uses the group's store and no tensor, so no device and no collective waits meanwhile.

    Args:
        work: called on rank 0 only. It must not talk to the other ranks.
        process_group: the ranks; None means the default group.
        silence: longest time without a heartbeat of rank 0. It sends two per second, however long
            `work` takes, unless its process is dead or stopped.

    Returns:
        The result of `work` on rank 0; None on the others.

    Raises:
        BaseException: on rank 0: the exception of `work`.
        RuntimeError: on the others: rank 0 raised, or was silent too long.
    """
    group = member_group(process_group, "on_first_rank")
    rank = dist.get_rank(group)
    store = PrefixStore("first_rank", group.get_group_store())
    # Calls are numbered by a counter of each rank in the store, so that no state is kept here.
    turn = PrefixStore(f"turn {store.add(f'turns of {rank}', 1)}", store)
    if rank == 0:
        return _work_alone(work, turn)
    began = heard = time.monotonic()
    beats = 0
    while not turn.check(["end"]):
        now = time.monotonic()
        if (count := turn.add("beats", 0)) != beats:
            beats, heard = count, now
        elif now - heard > silence.total_seconds():
            raise RuntimeError(
                "cannot complete: rank 0, for which the others wait, has given no sign of life for "
                f"{silence.total_seconds():g} s"
            )
        time.sleep(pause_seconds(now - began))
    if words := turn.get("end").decode():
        raise RuntimeError(f"cannot complete: rank 0 failed while others waited: {words}")
    return None


def _work_alone(work: Callable[[], T], turn: Store) -> T:
    """Do the work on rank 0, with heartbeats, and leave its end for the others."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_SECONDS):
            turn.add("beats", 1)

    beating = threading.Thread(target=beat, name="signs-of-life", daemon=True)
    beating.start()
    words = ""
    try:
        return work()
    except BaseException as error:
        words = f"{type(error).__name__}: {error}".partition("\n")[0]
        words = words.encode(errors="backslashreplace").decode()  # a name of a file
        raise
    finally:
        ended.set()
        beating.join()
        turn.set("end", words)
