"""Work of one rank that takes any length of time, while the others wait for it.

In a collective the others would give up after their group's timeout; here they wait for heartbeats,
which a thread of the working rank sends through the group's store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_process_group_store

from dpbench.parallel.groups import member_group
from dpbench.rendezvous.meeting import pause_seconds

T = TypeVar("T")
SILENCE = timedelta(minutes=5)
"""Longest silence of the working rank: without a heartbeat for so long it counts as dead."""
BEAT_SECONDS = 0.5
"""Seconds between two heartbeats."""


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
    turn = _Turn(group)
    if dist.get_rank(group) != 0:
        turn.wait(silence)
        return None
    return turn.take(work)


class _Turn:
    """One call of all ranks: heartbeats, and the result.

    Turns are numbered by a counter of each rank in the store, so that no state is kept here.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        # Private, but the only way to a group's store, whoever made the group.
        self._store = PrefixStore("first_rank", _get_process_group_store(group))
        self._number = self._store.add(f"turns of {dist.get_rank(group)}", 1)
        self._size = dist.get_world_size(group)

    def take(self, work: Callable[[], T]) -> T:
        """Run `work`, on rank 0."""
        ended = threading.Event()
        beating = threading.Thread(
            target=self._beat, args=(ended,), name="signs-of-life", daemon=True
        )
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
            self._store.set(self._key("end"), words)

    def wait(self, silence: timedelta) -> None:
        """Wait for rank 0, on the other ranks."""
        began = heard = time.monotonic()
        beats = 0
        while not self._store.check([self._key("end")]):
            now = time.monotonic()
            count = self._store.add(self._key("beats"), 0)
            if count != beats:
                beats, heard = count, now
            elif now - heard > silence.total_seconds():
                raise RuntimeError(
                    "cannot complete: rank 0, for which the others wait, has given no sign of "
                    f"life for {silence.total_seconds():g} s"
                )
            time.sleep(pause_seconds(now - began))
        words = self._store.get(self._key("end")).decode()
        self._leave()
        if words:
            raise RuntimeError(f"cannot complete: rank 0 failed while others waited: {words}")

    def _beat(self, ended: threading.Event) -> None:
        while not ended.wait(BEAT_SECONDS):
            self._store.add(self._key("beats"), 1)

    def _leave(self) -> None:
        """Leave the turn; the last rank deletes the keys that nobody reads any more."""
        if self._store.add(self._key("left"), 1) == self._size - 1:
            for what in ("beats", "end", "left"):
                self._store.delete_key(self._key(what))

    def _key(self, what: str) -> str:
        return f"turn {self._number}, {what}"
