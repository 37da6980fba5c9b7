"""A user's code: its errors as one line with their place, and its global random numbers."""

from __future__ import annotations

import functools
import inspect
import os
import random
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from dpbench.errors import UsageError

_PACKAGE = Path(__file__).parent.parent
_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
MAX_NUMPY_SEED = 2**32 - 1
_INSTALLED = ("site-packages", "dist-packages")


@contextmanager
def user_errors_in(
    title: str, doing: str, code: Callable[..., Any] | None = None
) -> Iterator[None]:
    """Turn errors inside the context into a UsageError that names the error and its place.

    The place is the innermost line of the user's code. A script that exits when it is imported
    counts too. What the code prints goes to stderr, since stdout may be the JSON of a command.

    Args:
        title: the code, such as "architecture 'model.py:Net'".
        doing: what is done with it, such as "loading it".
        code: the function to name if no line of the user's code was running, as in a Sequential.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except UsageError as error:
        if str(error).startswith(title):
            raise
        # dpbench has looked at what the code returned.
        raise UsageError(f"{title}: {doing}: {error}{code_place(code)}") from None
    except (Exception, SystemExit) as error:
        text = error.msg if isinstance(error, SyntaxError) and error.filename else str(error)
        said = ": ".join(filter(None, (type(error).__name__, " ".join(text.split()))))
        raise UsageError(f"{title}: {doing} raised {said}{raised_at(error, code)}") from error


def raised_at(error: BaseException, code: Callable[..., Any] | None = None) -> str:
    """The innermost line of the user's code. If none was running, as in a Sequential: the layer
    that was, and the place of `code`, which made it."""
    if isinstance(error, SyntaxError) and error.filename and not _is_machinery(error.filename):
        return _shown(error.filename, error.lineno)
    frames = [*traceback.walk_tb(error.__traceback__)]
    own = [(f.f_code.co_filename, line) for f, line in frames]
    own = [place for place in own if not _is_machinery(place[0])]
    if own:
        return _shown(*own[-1])
    module = getattr(sys.modules.get("torch.nn"), "Module", ())
    layers = [f.f_locals["self"] for f, _ in frames if isinstance(f.f_locals.get("self"), module)]
    if not layers:
        return code_place(code)
    has_parts = any(layers[-1].children())
    return f", in {type(layers[-1]).__name__ if has_parts else layers[-1]}{code_place(code)}"


def code_place(code: Callable[..., Any] | None) -> str:
    """File and line of a user's function or class, in brackets; empty for anything else."""
    while isinstance(code, functools.partial):
        code = code.func
    if code is None:
        return ""
    code = inspect.unwrap(code)  # to the function below its decorators
    try:
        file, (_, line) = inspect.getfile(code), inspect.getsourcelines(code)
    except (OSError, TypeError):  # builtin, or not in a file
        return ""
    return "" if _is_machinery(file) else _shown(file, line)


def _shown(file: str, line: int | None) -> str:
    path = Path(file)
    with suppress(OSError, ValueError):  # without a working directory, or from elsewhere
        path = path.relative_to(Path.cwd())
    return f" ({path}, line {line})"


def _is_machinery(file: str) -> bool:
    """Whether a file belongs to Python, torch or another installed package, or dpbench, or was
    written by torch.compile, and so not to the user."""
    path = Path(file)
    compiled = os.environ.get("TORCHINDUCTOR_CACHE_DIR")  # set by the first model it compiles
    if compiled and path.is_relative_to(compiled):
        return True
    installed = any(name in path.parts for name in _INSTALLED)
    python = file.startswith("<") or path.is_relative_to(_STANDARD_LIBRARY)
    return installed or python or path.is_relative_to(_PACKAGE)


def described(value: Any) -> str:
    """A short description of a value for messages."""
    if "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
        return "a scalar" if value.ndim == 0 else f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return f"a {type(value).__name__} of ({', '.join(type(part).__name__ for part in value)})"
    if value is None:
        return "None"
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global random numbers of torch, Python and numpy; afterwards they go on as before.

    Generators of GPUs are left alone, as items and batches are made on the CPU. Generators that the
    user's code makes itself, such as numpy's default_rng(), are not seeded.
    """
    import torch

    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy else None
    with torch.random.fork_rng(devices=[]):
        try:
            torch.default_generator.manual_seed(seed)  # torch.manual_seed also seeds all GPUs
            random.seed(seed)
            if numpy:
                numpy.random.seed(seed & MAX_NUMPY_SEED)
            yield
        finally:
            random.setstate(python_state)
            if numpy:
                numpy.random.set_state(numpy_state)
