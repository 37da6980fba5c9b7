"""Temporary states: folders in $TMPDIR, environment variables, no garbage collection.

A temporary folder is gone when its process ends, unless that is killed with SIGKILL.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from multiprocessing import process, util
from pathlib import Path

from dpbench.errors import LaunchError

LONGEST_SOCKET_FOLDER = 107 - len("/listener-12345678")
"""Bytes of a folder's path in which Linux lets Python's multiprocessing bind its sockets."""

_mine: dict[Path, int] = {}
"""Folders in use, with the process that made them: a fork of it must not remove them."""


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A new folder that only this user can read, removed at the end."""
    folder, owner = Path(tempfile.mkdtemp(prefix="dpbench-")), os.getpid()
    _mine[folder] = owner
    try:
        yield folder
    finally:
        # A forked process drops what it inherits, contexts that are open too.
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)
            _mine.pop(folder, None)


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


def remove_temporary_folders() -> None:
    """Remove the temporary folders of this process, which is about to end without leaving its
    contexts."""
    for folder, pid in [*_mine.items()]:
        if pid == os.getpid():
            shutil.rmtree(folder, ignore_errors=True)


@cache
def keep_sockets_in_own_folder() -> None:
    """Have Python's multiprocessing use such a folder, instead of $TMPDIR/pymp-* of its own.

    To be called before the first process is started; child processes use the same folder.
    """
    # Not public, but what multiprocessing.util.get_temp_dir looks at, and hands to children.
    options = process.current_process()._config  # type: ignore[attr-defined]
    if "tempdir" in options:  # the program that uses dpbench has started processes before
        return
    stack = ExitStack()
    folder = stack.enter_context(temporary_folder())
    if len(os.fsencode(folder)) > LONGEST_SOCKET_FOLDER:
        stack.close()
        raise LaunchError(
            f"the folder for temporary files, {tempfile.gettempdir()}, is too long for the path "
            "of a socket; expected another TMPDIR, of 70 bytes or less"
        )
    # Python ends its fork server and managers at exit, all before what has a negative priority.
    util.Finalize(None, stack.close, exitpriority=-100)
    options["tempdir"] = str(folder)
