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
from pathlib import Path

_folders: dict[Path, int] = {}
"""Folders in use, with the process that made them: a fork of it must not remove them."""
_endings: dict[Callable[[], None], int] = {}
"""Functions to call before the process ends, with that process."""


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A new folder that only this user can read, removed at the end."""
    folder, owner = Path(tempfile.mkdtemp(prefix="dpbench-")), os.getpid()
    _folders[folder] = owner
    try:
        yield folder
    finally:
        # A forked process drops what it inherits, contexts that are open too.
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)
            _folders.pop(folder, None)


@contextmanager
def temporary_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process inside the context, and restore them at the end."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
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


def call_when_ending(function: Callable[[], None]) -> None:
    """Have `clean_up` call this function in this process."""
    _endings[function] = os.getpid()


def clean_up() -> None:
    """Call what `call_when_ending` was given, and remove the temporary folders of this process,
    which is about to end without leaving its contexts."""
    for function, pid in [*_endings.items()]:
        if pid == os.getpid():
            function()
    for folder, pid in [*_folders.items()]:
        if pid == os.getpid():
            shutil.rmtree(folder, ignore_errors=True)
