"""The server that ranks are forked from: it imports torch once, and each rank inherits that."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.context import ForkServerContext
from pathlib import Path

from dpbench.temporary import remove_when_ending, temporary_variables

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
        with temporary_variables({"PYTHONSAFEPATH": "1"}), start_method_unchanged():
            forkserver.ensure_running()
        # It listens in a folder that Python removes only at a normal exit.
        remove_when_ending(Path(util.get_temp_dir()))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


@contextmanager
def start_method_unchanged() -> Iterator[None]:
    """Let multiprocessing start a process without settling this program's start method, which it
    reads and thereby fixes."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(chosen, force=True)


def fork_server_process() -> int:
    """Process id of the running server."""
    fork_server()
    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    assert isinstance(pid, int)  # private, but there is no other way to learn it
    return pid
