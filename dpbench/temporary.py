"""Temporary states: folders in $TMPDIR, environment variables, no garbage collection.

A temporary folder is gone when its process ends, unless that is killed with SIGKILL.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

_endings: dict[Callable[[], object], int] = {}
"""Functions to call before the process ends, with that process: its forks must not call them."""


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A new folder that only this user can read, removed at the end."""
    folder, owner = Path(tempfile.mkdtemp(prefix="dpbench-")), os.getpid()
    remove = partial(shutil.rmtree, folder, ignore_errors=True)
    call_when_ending(remove)
    try:
        yield folder
    finally:
        # A forked process drops what it inherits, contexts that are open too.
        if os.getpid() == owner:
            remove()
            del _endings[remove]


@contextmanager
def temporary_variables(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables of this process inside the context, or remove those that are None,
    and restore them at the end."""
    before = {name: os.environ.get(name) for name in variables}
    _set_variables(variables)
    try:
        yield
    finally:
        _set_variables(before)


def _set_variables(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection inside the context."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def call_when_ending(function: Callable[[], object]) -> None:
    """Have `clean_up` call this function in this process, before those given earlier."""
    _endings.pop(function, None)
    _endings[function] = os.getpid()


def clean_up() -> None:
    """Call what `call_when_ending` was given and remove the temporary folders, in a process that is
    about to end without leaving its contexts."""
    for function, pid in reversed([*_endings.items()]):
        if pid == os.getpid():
            function()
