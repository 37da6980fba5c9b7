"""Runs a function on n ranks with one call: for tests and small experiments, without a launcher."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import ConfigDict, Field, validate_call
from torch.distributed.elastic.multiprocessing.tail_log import TailLog

from dpbench.launch.failures import RanksFailed
from dpbench.launch.rank_process import (
    STREAMS,
    is_rank,
    main_thread_stack,
    output_path,
    stack_path,
)
from dpbench.launch.ranks import run_ranks
from dpbench.rendezvous.placement import Placement
from dpbench.rendezvous.store import serve_store
from dpbench.temporary import temporary_folder

T = TypeVar("T")

WORLD_TIMEOUT = timedelta(minutes=5)


def world_report(failed: RanksFailed, scratch: Path, size: int) -> str:
    """The failure of a world in full: the first cause with its traceback, or the stacks of ranks at
    the time limit, and the ranks that failed after it. `scratch` is the folder of the ranks."""
    cause = failed.cause
    if not any(stack_path(scratch, rank).exists() for rank in range(size)):
        return (
            f"{failed}, before its function began; the call of fork_world must stand under "
            '`if __name__ == "__main__":`, and the function in a file that can be imported '
            "(see above for any other error)"
        )
    parts = [str(failed), *([cause.details] if cause and cause.details else [])]
    for rank in range(size):
        if stack := main_thread_stack(scratch, rank).splitlines()[1:]:
            parts.append(f"rank {rank} was here (most recent call first):\n" + "\n".join(stack))
    for failure in failed.failures:
        if failure.details and failure is not cause:
            parts.append(f"after it, rank {failure.rank} {failure.predicate}")
    return "\n\n".join(parts)


@validate_call(config=ConfigDict(strict=True))
def fork_world(
    fn: Callable[[int], T],
    n: Annotated[int, Field(ge=1)],
    *,
    start_method: Literal["forkserver", "spawn", "fork"] = "forkserver",
    timeout: Annotated[timedelta, Field(gt=timedelta(0))] = WORLD_TIMEOUT,
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
        TypeError: fn cannot be sent to a rank.
        ValueError: an argument cannot be used, with its name and value (pydantic's ValidationError
            is a ValueError).
        RuntimeError: a rank raised, exited, was killed or was too slow; the message says which and
            why, with the traceback.
    """
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
    with temporary_folder() as scratch, _printing(scratch, n):
        store = serve_store()  # until the ranks have ended
        place, seconds = Placement.first_of(n, store.port), timeout.total_seconds()
        try:
            return run_ranks(fn, n, scratch, seconds, place=place, start_method=start_method)
        except RanksFailed as failed:
            raise RuntimeError(world_report(failed, scratch, n)) from None


@contextmanager
def _printing(scratch: Path, count: int) -> Iterator[None]:
    """Print what the ranks write, each line with the rank in front."""
    prefixes = {number: f"[rank {number}] " for number in range(count)}
    tails = []
    for name in STREAMS:
        files = {number: str(output_path(scratch, number, name)) for number in range(count)}
        tails.append(TailLog("rank", files, getattr(sys, name), prefixes).start())
    try:
        yield
    finally:
        for tail in tails:
            tail.stop()
