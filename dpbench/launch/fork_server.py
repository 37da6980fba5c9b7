"""The server that ranks are forked from: it imports torch once, and each rank inherits that."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.context import ForkServerContext

import psutil

from dpbench.temporary import call_when_ending, temporary_variables

PRELOADED = ["dpbench.launch.preload"]
"""Modules that the server imports."""


def fork_server() -> ForkServerContext:
    """The context to start processes with; its server is running.

    The first caller starts the server, so all code must use this function: a server keeps the
    settings that it was started with.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    resource_tracker.ensure_running()  # here, since its start unblocks the signals
    # The server inherits the mask: Ctrl-C reaches it too and must not end it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        # Otherwise Python puts the working directory first, with any dpbench or torch in it.
        with temporary_variables({"PYTHONSAFEPATH": "1"}):
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    call_when_ending(_clean_up)
    return context


def server_pid() -> int | None:
    """Process id of the server; None unless it was started here."""
    # Private, but there is no other way to learn it.
    pid: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return pid


def end_fork_server() -> None:
    """Kill the server and all ranks that it has forked for this process; the next call of
    `fork_server` starts another one."""
    pid = server_pid()
    if pid is None:
        return
    with suppress(psutil.NoSuchProcess, ChildProcessError):
        server = psutil.Process(pid)
        server.suspend()  # it forks no more
        for process in [*server.children(), server]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        # Python sees that it has ended, and collects it, before it starts the next one.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def _clean_up() -> None:
    """Remove what Python itself removes only at a normal exit."""
    end_fork_server()
    shutil.rmtree(util.get_temp_dir(), ignore_errors=True)
