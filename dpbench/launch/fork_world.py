"""Runs a function on n ranks with one call: for tests and small experiments, without a launcher."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import TypeVar

from dpbench.errors import Interrupted
from dpbench.launch.agent import RanksFailed, run_ranks
from dpbench.launch.launcher import TrialOutcome
from dpbench.launch.rank import main_thread_stack, pid_path, write_whole
from dpbench.launch.signals import handle_unless_ignored
from dpbench.rendezvous.meeting import check_timeout
from dpbench.temporary import temporary_folder

T = TypeVar("T")

_in_a_rank = False
START_METHODS = ("forkserver", "spawn", "fork")
DEFAULT_TIMEOUT = timedelta(minutes=5)


class WorldFailed(RuntimeError):
    """A rank of a world did not return. The first line names the first cause."""


def fork_world(
    fn: Callable[[int], T],
    n: int,
    *,
    start_method: str = "forkserver",
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> list[T]:
    """[fn(0), …, fn(n - 1)], each from a process of its own, ready for init_process_group.

    RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set in each
    rank, and not here. Output of the ranks appears here, each line with the rank in front. The
    first rank that fails ends the world. A script must call it under `if __name__ == "__main__":`,
    since each rank imports the script again, unless it is forked.

    Args:
        fn: gets its rank. It and its result are pickled, so it must be importable: a function of
            a module or script. A forked rank also takes a lambda.
        n: ranks, on this host.
        start_method: "forkserver" forks each rank from a process that has imported torch and
            nothing else, in a tenth of a second after the first; "spawn" starts Python afresh;
            "fork" copies this process as it is, which hangs or fails if torch has computed with
            threads or CUDA here before.
        timeout: for the whole world; when it expires, every rank writes where it is.

    Raises:
        TypeError: fn is no function or cannot be sent to a rank, or the timeout is no timedelta.
        ValueError: n is no number of ranks, or another argument is invalid.
        WorldFailed: a rank raised, exited, was killed or was too slow; the message says which and
            why, with the traceback.
    """
    _check(fn, n, start_method, timeout)
    if start_method != "fork":
        _check_sendable(fn)
    with temporary_folder() as scratch:
        work = partial(_call, fn, scratch)
        seconds = timeout.total_seconds()
        try:
            results = run_ranks(
                work, n, scratch, seconds, start_method=start_method, shown=True, over_tcp=True
            )
        except RanksFailed as failed:
            raise WorldFailed(_describe(scratch, n, failed.outcome)) from None
        except Interrupted as interrupted:
            if interrupted.signal_number == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise
    return [pickle.loads(result) for result in results]


def _check(fn: object, n: object, start_method: object, timeout: object) -> None:
    if not callable(fn):
        raise TypeError(f"fork_world: got {fn!r}, expected a function of the rank")
    if not isinstance(n, int) or isinstance(n, bool):
        raise ValueError(f"fork_world: got n={n!r}, expected an int: the number of ranks")
    if n < 1:
        raise ValueError(f"fork_world: got n={n}, expected at least one rank")
    if start_method not in START_METHODS:
        raise ValueError(
            f"fork_world: got start_method={start_method!r}, "
            f"expected one of {', '.join(START_METHODS)}"
        )
    check_timeout("fork_world", timeout)
    if start_method == "fork" and _in_a_rank:
        # The rank's faulthandler has a watchdog thread, for which a forked copy would wait forever.
        raise ValueError("fork_world: a rank cannot be forked again; take forkserver or spawn here")
    # Private, but how Python marks a process that still imports the script that started it.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(1)  # the world that started this rank reports the error


def _check_sendable(fn: Callable[..., object]) -> None:
    name = getattr(fn, "__qualname__", repr(fn))
    remedy = "define it with `def` at the top of a module, and bind its arguments with a partial"
    try:
        pickled = bytes(ForkingPickler.dumps(fn))
    except Exception as error:
        raise TypeError(
            f"fork_world: {name} cannot be sent to another process ({error}); {remedy}"
        ) from None
    script = getattr(sys.modules["__main__"], "__file__", None)
    if b"__main__" in pickled and not (script and Path(script).exists()):
        raise TypeError(
            f"fork_world: {name} is defined in an interactive session, which no other process "
            f"can import; put it into a file, and import it from there"
        )


def _call(fn: Callable[[int], object], scratch: Path, rank: int) -> bytes:
    """Run `fn` in the rank. The result is pickled to bytes here, so that nothing else in between
    unpickles it."""
    global _in_a_rank
    _in_a_rank = True
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        handle_unless_ignored(number, signal.SIG_DFL)  # a forked rank inherits the launcher's
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        result = fn(rank)
        return _pickled(result, rank)
    except BaseException as error:
        where = error.__traceback__ and error.__traceback__.tb_next  # starts at fn
        words = traceback.format_exception(type(error), error, where)
        # Written atomically, since another rank's failure may end this one in the middle.
        write_whole(_traceback_path(scratch, rank), "".join(words).strip())
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - the world's error shows it, once
        raise


def _pickled(result: object, rank: int) -> bytes:
    try:
        return pickle.dumps(result)
    except Exception as error:
        raise TypeError(f"the result of rank {rank} cannot be sent back: {error}") from None


def _traceback_path(scratch: Path, rank: int) -> Path:
    return scratch / f"rank{rank}.traceback"


def _describe(scratch: Path, size: int, outcome: TrialOutcome) -> str:
    """The first cause, its traceback, and the other ranks that failed after it."""
    reason = outcome.reason or "a rank failed"
    if not any(pid_path(scratch, rank).exists() for rank in range(size)):
        return (
            f"{reason}, while it imported the calling script; the call of fork_world must stand "
            'under `if __name__ == "__main__":` (see above for any other error)'
        )
    parts = [reason]
    for rank in range(size):
        failed, busy = _traceback_path(scratch, rank), _stack(scratch, rank)
        if failed.exists():
            text = failed.read_text(encoding="utf-8")
            if outcome.raised and rank == outcome.raised.rank:
                parts.insert(1, text)
            else:
                parts.append(f"rank {rank} failed, too: {text.splitlines()[-1]}")
        elif busy:
            parts.append(f"rank {rank} was here (most recent call first):\n{busy}")
    return "\n\n".join(parts)


def _stack(scratch: Path, rank: int) -> str:
    """The main thread's stack in a rank when time ran out, down to `fn`; empty otherwise."""
    frames = main_thread_stack(scratch, rank).splitlines()[1:]
    return "\n".join(itertools.takewhile(lambda frame: f'"{__file__}"' not in frame, frames))
