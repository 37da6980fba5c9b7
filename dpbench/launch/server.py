"""The server that ranks are forked from: it imports torch once, and each rank inherits that."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext

from dpbench.errors import LaunchError
from dpbench.launch.signals import signal_name
from dpbench.temporary import keep_sockets_in_own_folder, temporary_variables

PRELOADED = ["dpbench.launch.preload"]
"""Modules that the server imports."""
SAFE_PATH = "PYTHONSAFEPATH"


def fork_server() -> ForkServerContext:
    """The context to start processes with; its server is running.

    The first caller starts the server, so all code must use this function: a server keeps the
    settings that it was started with.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    keep_sockets_in_own_folder()
    resource_tracker.ensure_running()  # here, since its start unblocks the signals
    # Otherwise Python puts the working directory first, with any dpbench or torch in it.
    with temporary_variables({SAFE_PATH: "1"}), _without_interrupts():
        _ensure_running()
    _check_semaphores(context)
    return context


def fork_server_process() -> int:
    """Process id of the running server."""
    fork_server()
    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    assert isinstance(pid, int)  # private, but the only way to learn how it ended
    return pid


def server_end(pid: int) -> str | None:
    """The end of a server that this process started, in words; None while it runs.

    After its end nobody knows how the ranks forked from it ended.
    """
    gone = "the server that ranks are forked from"
    try:  # leaves the zombie to Python, which starts another server when it finds it
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return f"{gone} has ended"
    if end is None:
        return None
    if end.si_code == os.CLD_EXITED:
        return f"{gone} exited with status {end.si_status}"
    return f"{gone} was killed by {signal_name(end.si_status)}"


def _ensure_running() -> None:
    try:
        forkserver.ensure_running()
    except ChildProcessError:  # the server that Python knows is another process's child
        raise LaunchError(
            "this process was forked from one that has started ranks, and cannot use its server; "
            "start_method='spawn' works here"
        ) from None


def _check_semaphores(context: ForkServerContext) -> None:
    """Check /dev/shm: processes are started with semaphores, which Python keeps there, one page
    each."""
    try:
        context.Lock()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise LaunchError(
            "cannot start processes: /dev/shm is full, and Python keeps their semaphores there; "
            "expected a few pages free: remove what nobody uses (ls -l /dev/shm)"
        ) from None


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Block interrupts: the server inherits the mask, as Ctrl-C reaches it too and must not end
    it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
