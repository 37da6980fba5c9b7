"""What calls from a Python program need: one at a time, messages for the caller, and a script that
ranks do not import again."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from signal import SIGINT

from dpbench.errors import Interrupted, UsageError
from dpbench.messages import said_to, to_stderr

NAMES_OF_MAIN = ("__spec__", "__file__")
_measuring = threading.Lock()


@contextmanager
def alone(*, call: str = "dpbench.sweep") -> Iterator[None]:
    """One call at a time. Ranks keep the environment variables of the first call, which starts the
    server that they are forked from.

    Raises UsageError for another call.
    """
    if not _measuring.acquire(blocking=False):
        raise UsageError(
            f"{call}: another call of this process is measuring or training; wait for its end. A "
            "script that is imported for its architecture puts its call under "
            '`if __name__ == "__main__":`'
        )
    try:
        with _main_module_unseen():
            yield
    finally:
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
