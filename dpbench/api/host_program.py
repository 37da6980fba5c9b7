"""The program that a call is made from: what it must not do to a sweep or a training, nor they to
it, and what it is told."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from signal import SIGINT

from dpbench.errors import Interrupted, UsageError
from dpbench.messages import said_to, to_stderr
from dpbench.records import environment

NAMES_OF_MAIN = ("__spec__", "__file__")
_measuring = threading.Lock()
_measuring_thread: int | None = None
_variables_of_ranks: list[tuple[tuple[str, str], ...]] = []
"""Variables of the first call: the server that ranks are forked from keeps those from its start."""


@contextmanager
def alone(*, call: str = "dpbench.sweep") -> Iterator[None]:
    """One call at a time, in a program that may start processes with what it records of them.

    Raises UsageError otherwise.
    """
    if multiprocessing.current_process().daemon:
        raise UsageError(
            f"{call}: this is a daemonic process of multiprocessing, which may start no "
            "others; call it from the process that started this one"
        )
    global _measuring_thread
    if not _measuring.acquire(blocking=False):
        raise UsageError(f"{call}: {_why_not_now()}")
    _measuring_thread = threading.get_ident()
    try:
        _check_variables(call)
        with _main_module_unseen():
            yield
    finally:
        _measuring_thread = None
        _measuring.release()


@contextmanager
def listening(*, progress: bool) -> Iterator[list[str]]:
    """Collects what is said inside, and prints it too with `progress`.

    Ctrl-C is a KeyboardInterrupt there that says how to go on.
    """
    said: list[str] = []

    def listen(message: str) -> None:
        said.append(message)
        if progress:
            to_stderr(message)

    with said_to(listen):
        try:
            yield said
        except Interrupted as error:
            if error.signal_number != SIGINT:
                raise
            raise KeyboardInterrupt(str(error)) from None


def _why_not_now() -> str:
    if _measuring_thread == threading.get_ident():
        return (
            "this call is made while another of this thread is under way, as by a script that is "
            'imported for its architecture; put the call under `if __name__ == "__main__":`'
        )
    return (
        "another thread of this process is measuring or training, and each would disturb the "
        "other; wait for its end"
    )


def _check_variables(call: str) -> None:
    now = environment.variables()
    if not _variables_of_ranks:
        _variables_of_ranks.append(now)
    before = dict(_variables_of_ranks[0])
    changed = [n for n in {**before, **dict(now)} if before.get(n) != dict(now).get(n)]
    if changed:
        raise UsageError(
            f"{call}: {', '.join(changed)} changed since the first sweep or training of this "
            "process, and ranks would not see it; restart Python, and set it before"
        )


@contextmanager
def _main_module_unseen() -> Iterator[None]:
    """multiprocessing would import the caller's script again in every rank, to find in it what
    was pickled: without `if __name__ == "__main__"` that is the sweep once more. Ranks need
    nothing of it, and it is found by these two names."""
    main = sys.modules["__main__"]
    names = vars(main)
    hidden = {name: names[name] for name in NAMES_OF_MAIN if name in names}
    names.pop("__file__", None)
    names["__spec__"] = None
    try:
        yield
    finally:
        names.update(hidden)
