"""What calls from a Python program need: one at a time, messages for the caller in words of Python,
documentation of their options, and a script that ranks do not import again."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from signal import SIGINT
from typing import Any

from dpbench.errors import Interrupted, UsageError
from dpbench.messages import said_to, to_stderr, worded_for_python
from dpbench.options.model import Options, options_of

NAMES_OF_MAIN = ("__spec__", "__file__")
_measuring = threading.Lock()


@contextmanager
def measuring_call(name: str, *, progress: bool, alone: bool = True) -> Iterator[None]:
    """The block of one call, whose messages name arguments, and are on stderr if `progress`.

    Ranks keep the environment variables of the first call, which starts the server that they are
    forked from. Raises UsageError if another call is in its block, unless either is not `alone`.
    Ctrl-C is a KeyboardInterrupt that says how to go on.
    """
    if alone and not _measuring.acquire(blocking=False):
        raise UsageError(
            f"{name}: another call of this process is measuring or training; wait for its end. A "
            "script that is imported for its architecture puts its call under "
            '`if __name__ == "__main__":`'
        )
    try:
        listener = to_stderr if progress else lambda message: None
        with said_to(listener), worded_for_python(), _main_module_unseen():
            yield
    except Interrupted as error:
        if error.signal_number != SIGINT:
            raise
        raise KeyboardInterrupt(str(error)) from None
    finally:
        if alone:
            _measuring.release()


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


def document(function: Callable[..., Any], model: type[Options]) -> None:
    """Add a line for each option of the model to the docstring of a call."""
    lines = [
        f"    {name}: {info.help}"
        for name, info in options_of(model).items()
        if info.scope != "shell" and name not in inspect.signature(function).parameters
    ]
    function.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Options:", *lines])
