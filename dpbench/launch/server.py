"""The server that ranks are forked from: it imports torch once, and each rank inherits that."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext
from time import monotonic, sleep

from dpbench.launch.signals import signal_name
from dpbench.temporary import keep_sockets_in_own_folder, temporary_variables

PRELOADED = ["dpbench.launch.preload"]
"""Modules that the server imports."""
POLL_SECONDS = 0.01


def fork_server() -> ForkServerContext:
    """The context to start processes with; its server is running.

    The first caller starts the server, so all code must use this function: a server keeps the
    settings that it was started with.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    keep_sockets_in_own_folder()
    resource_tracker.ensure_running()  # here, since its start unblocks the signals
    # The server inherits the mask: Ctrl-C reaches it too and must not end it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        # Otherwise Python puts the working directory first, with any dpbench or torch in it.
        with temporary_variables({"PYTHONSAFEPATH": "1"}):
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def fork_server_process() -> int:
    """Process id of the running server."""
    fork_server()
    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    assert isinstance(pid, int)  # private, but the only way to learn how it ended
    return pid


def server_end(pid: int, wait_seconds: float) -> str | None:
    """The end of a server that this process started, in words; None if it still runs when the time
    to wait is over.

    After its end nobody knows how the ranks forked from it ended.
    """
    gone = "the server that ranks are forked from"
    deadline = monotonic() + wait_seconds
    try:  # leaves the zombie to Python, which starts another server when it finds it
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while (end := os.waitid(os.P_PID, pid, flags)) is None and monotonic() < deadline:
            sleep(POLL_SECONDS)
    except ChildProcessError:
        return f"{gone} has ended"
    if end is None:
        return None
    if end.si_code == os.CLD_EXITED:
        return f"{gone} exited with status {end.si_status}"
    return f"{gone} was killed by {signal_name(end.si_status)}"
