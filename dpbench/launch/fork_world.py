"""Runs a function on n ranks with one call: for tests and small experiments, without a launcher."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import TypeVar

from dpbench.launch.rank import is_rank, main_thread_stack, stack_path
from dpbench.launch.ranks import RanksFailed, run_ranks
from dpbench.rendezvous.barrier import check_timeout
from dpbench.temporary import temporary_folder

T = TypeVar("T")

START_METHODS = ("forkserver", "spawn", "fork")
WORLD_TIMEOUT = timedelta(minutes=5)


class WorldFailed(RuntimeError):
    """A rank of a world did not return. The first line names the first cause; its traceback or the
    stacks of ranks at the time limit follow, and the ranks that failed after it."""

    def __init__(self, scratch: Path, size: int, failed: RanksFailed) -> None:
        """`scratch` is the folder with what the ranks have left."""
        reason, raised = failed.outcome.reason or "a rank failed", failed.outcome.raised
        if not any(stack_path(scratch, rank).exists() for rank in range(size)):
            super().__init__(
                f"{reason}, before its function began; the call of fork_world must stand under "
                '`if __name__ == "__main__":`, and the function in a file that can be imported '
                "(see above for any other error)"
            )
            return
        parts = [reason, *([raised.traceback] if raised else [])]
        for rank in range(size):
            if stack := main_thread_stack(scratch, rank).splitlines()[1:]:
                parts.append(f"rank {rank} was here (most recent call first):\n" + "\n".join(stack))
        for trace in failed.traces:
            if trace.failure and trace.failure is not raised:
                parts.append(f"rank {trace.rank} failed, too: {trace.failure.message}")
        super().__init__("\n\n".join(parts))


def fork_world(
    fn: Callable[[int], T],
    n: int,
    *,
    start_method: str = "forkserver",
    timeout: timedelta = WORLD_TIMEOUT,
) -> list[T]:
    """Run `fn` on `n` ranks and return [fn(0), …, fn(n - 1)].

    Each rank is a process of its own, ready for init_process_group: RANK, WORLD_SIZE, LOCAL_RANK,
    LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set there, and not here. Output of the ranks
    appears here, each line with the rank in front. The first rank that fails ends the world. A
    script must call it under `if __name__ == "__main__":`, since each rank imports the script
    again, unless it is forked.

    Args:
        fn: gets its rank. It and its result are pickled, so it must be importable: a function of
            a module or script, not of an interactive session. A forked rank also takes a lambda.
        n: ranks, on this host.
        start_method: "forkserver" forks each rank from a process that has imported torch and
            nothing else, in a tenth of a second after the first; "spawn" starts Python afresh;
            "fork" copies this process as it is, which hangs or fails if torch has computed with
            threads or CUDA here before.
        timeout: for the whole world; on expiry each rank reports its stack.

    Raises:
        TypeError: fn is not callable or cannot be sent to a rank, or timeout is not a timedelta.
        ValueError: n is not an int of 1 or more, or another argument is invalid.
        WorldFailed: a rank raised, exited, was killed or was too slow; the message says which and
            why, with the traceback.
    """
    _check(fn, n, start_method, timeout)
    with temporary_folder() as scratch:
        seconds = timeout.total_seconds()
        try:
            return run_ranks(
                fn, n, scratch, seconds, start_method=start_method, shown=True, over_tcp=True
            )
        except RanksFailed as failed:
            raise WorldFailed(scratch, n, failed) from None


def _check(fn: object, n: object, start_method: object, timeout: object) -> None:
    if not callable(fn):
        raise TypeError(f"fork_world: got {fn!r}, expected a function of the rank")
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise ValueError(f"fork_world: got n={n!r}, expected an int of 1 or more: the ranks")
    if start_method not in START_METHODS:
        raise ValueError(
            f"fork_world: got start_method={start_method!r}, "
            f"expected one of {', '.join(START_METHODS)}"
        )
    check_timeout("fork_world", timeout)
    if start_method == "fork" and is_rank():
        # The rank's faulthandler has a watchdog thread, for which a forked copy would wait forever.
        raise ValueError("fork_world: a rank cannot be forked again; take forkserver or spawn here")
    # Private, but how Python marks a process that still imports the script that started it.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(1)  # the world that started this rank reports the error
    if start_method != "fork":
        try:
            ForkingPickler.dumps(fn)
        except Exception as error:
            raise TypeError(
                f"fork_world: {getattr(fn, '__qualname__', repr(fn))} cannot be sent to another "
                f"process ({error}); define it with `def` at the top of a module, and bind its "
                "arguments with a partial"
            ) from None
