"""Errors in a user's code as one line, with the place in their file."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpbench.errors import UsageError

_PACKAGE = Path(__file__).parent.parent
_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
_INSTALLED = ("site-packages", "dist-packages")


@contextmanager
def user_errors_in(title: str, doing: str) -> Iterator[None]:
    """Turn errors inside the context into a UsageError that names the error and its place.

    A script that exits when it is imported counts too.

    Args:
        title: the code, such as "architecture 'model.py:Net'".
        doing: what is done with it, such as "loading it".
    """
    try:
        yield
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        message = " ".join(str(error).split())
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if not is_machinery(Path(frame.filename))]
        place = ""
        if own and not isinstance(error, SyntaxError):  # whose message has the place
            path = Path(own[-1].filename)
            shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
            place = f" ({shown}, line {own[-1].lineno})"
        raise UsageError(
            f"{title}: {doing} raised {type(error).__name__}: {message}{place}"
        ) from error


def is_machinery(path: Path) -> bool:
    """Whether a file belongs to Python, torch or another installed package, or dpbench, and so not
    to the user."""
    installed = any(name in path.parts for name in _INSTALLED)
    python = str(path).startswith("<") or path.is_relative_to(_STANDARD_LIBRARY)
    return installed or python or path.is_relative_to(_PACKAGE)
