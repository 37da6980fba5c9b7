"""The process of a rank from within: its environment, its output and its time limit.

It sends its result or its failure to the launcher; if it hangs, it leaves its stack in the trial's
scratch folder.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from dpbench.errors import DpbenchError
from dpbench.launch.failures import failure_of_exception
from dpbench.launch.signals import handle_endings
from dpbench.parent_death import PR_SET_CHILD_SUBREAPER, prctl

MIN_LIMIT_SECONDS = 0.01
STREAMS = ("stdout", "stderr")
_in_rank = threading.Event()
"""Set in the processes of ranks."""


def rank_main(
    call: Callable[[int], object],
    scratch: Path,
    started: float,
    time_limit_seconds: float,
    environment: dict[str, str],
    connection: Connection,
) -> None:
    """Send `call(rank)` to the launcher, or a RankFailure, for the rank that `environment` names,
    which are all of its variables.

    A rank that is still busy `time_limit_seconds` after `started`, on the monotonic clock, writes
    its stack, even if it is stuck in C++. The launcher ends it a moment later, when all have
    written theirs.
    """
    _in_rank.set()
    os.setsid()  # as under torchrun: schedulers share the cores among sessions
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans below this process become its children
    os.environ.clear()
    os.environ.update(environment)
    rank = int(os.environ["RANK"])
    gc.freeze()  # or each collection walks the fork server's imports, for 0.2 s

    def end_with_launcher() -> None:
        """End this process and all that it has started as soon as the launcher is gone, even by
        kill -9.

        A thread sleeps in the kernel until then. The parent-death signal does not help: the parent
        of a rank is the fork server, which lives as long as any rank. The signal to the group also
        reaches a process that is being forked, such as a worker of a script's loader.
        """
        launcher = multiprocessing.parent_process()
        assert launcher is not None
        launcher.join()  # waits for the end of a pipe, so no other process is taken for it
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=end_with_launcher, daemon=True).start()
    handle_endings(signal.SIG_DFL)  # a forked rank inherits the launcher's handlers
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _redirect(scratch, rank)
    seconds_left = max(started + time_limit_seconds - time.monotonic(), MIN_LIMIT_SECONDS)
    seconds_left = min(seconds_left, threading.TIMEOUT_MAX)
    with stack_path(scratch, rank).open("w") as stack:
        faulthandler.dump_traceback_later(seconds_left, file=stack)
        try:
            _send(connection, (call(rank), None))
        except BaseException as error:
            failure = failure_of_exception(rank, error, started)
            with suppress(Exception):  # the disk may be full, or the work has closed the streams
                # The message of our own errors says all, unless another error is their cause.
                if error.__cause__ or not isinstance(error, DpbenchError):
                    sys.stderr.write(failure.details)
                sys.stdout.flush()
                sys.stderr.flush()
            with suppress(OSError):  # the launcher may be gone
                _send(connection, (None, failure))
            end_descendants()
            os._exit(1)  # without destructors, which might wait for other ranks
        finally:
            faulthandler.cancel_dump_traceback_later()
    end_descendants()
    connection.poll(None)  # until all have results: they may still need this rank's connections


def _send(connection: Connection, answer: object) -> None:
    """Send the rank's answer, and then no more, so that the launcher knows its end."""
    # multiprocessing's pickler would share the memory of tensors, which ends with the rank.
    content = pickle.dumps(answer)
    with socket.socket(fileno=os.dup(connection.fileno())) as pipe:
        pipe.sendall(content)
        pipe.shutdown(socket.SHUT_WR)


def end_descendants() -> None:
    """Kill what this process has started, and all below it, and collect it, so that its time is
    known as this process's."""
    descendants = psutil.Process().children(recursive=True)  # parents come first
    for process in descendants:
        with suppress(psutil.Error):
            process.kill()
    for process in descendants:
        with suppress(ChildProcessError):
            os.waitpid(process.pid, 0)


def is_rank() -> bool:
    """Whether this process is a rank that dpbench has started."""
    return _in_rank.is_set()


def output_path(scratch: Path, rank: int, stream: str) -> Path:
    """File with what the rank has written to a stream of STREAMS."""
    return scratch / f"rank{rank}.{stream}"


def stack_path(scratch: Path, rank: int) -> Path:
    """File of a rank that has started; empty unless it was still busy at the time limit."""
    return scratch / f"rank{rank}.stack"


def main_thread_stack(scratch: Path, rank: int) -> str:
    """The frames of the rank's main thread at the time limit, from the innermost to the rank's
    work; else empty."""
    path = stack_path(scratch, rank)
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    # faulthandler writes the main thread last.
    return text.rpartition("Thread 0x")[2].partition(f'  File "{__file__}"')[0]


def _redirect(scratch: Path, rank: int) -> None:
    """Send what this process and its libraries print to files, each line as soon as it is there."""
    for descriptor, name in enumerate(STREAMS, start=1):
        getattr(sys, name).flush()
        with output_path(scratch, rank, name).open("ab") as file:
            os.dup2(file.fileno(), descriptor)
        setattr(
            sys,
            name,
            open(descriptor, "w", buffering=1, errors="backslashreplace", closefd=False),  # noqa: SIM115
        )
