"""The Python and torch that dpbench needs; an older one is refused on import.

Neither is imported to find out: torch takes seconds. Nothing here may need a later Python than the
one that is refused.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

PYTHON = (3, 11)
TORCH = (2, 9)
NEWEST_TORCH = (2, 15)
"""The newest that `make matrix` was run with."""


def check_requirements() -> None:
    """Raise ImportError in one line where Python or torch is too old; a command ends with it."""
    if reason := python_reason(sys.version_info[:3]) or torch_reason():
        # `dpbench` or `python -m dpbench`, and not a program that imports it.
        if Path(sys.argv[0] if sys.argv else "").name in ("dpbench", "-m"):
            sys.exit(f"dpbench: {reason}")
        raise ImportError(reason)


def python_reason(version: tuple[int, ...]) -> str | None:
    """Why dpbench cannot run on this Python; None if it can."""
    if version >= PYTHON:
        return None
    needed = version_words(PYTHON)
    return f"dpbench needs Python {needed} or later, and this is {version_words(version)}"


def torch_reason() -> str | None:
    """Why it cannot run with the torch that is installed; None if it can, or if there is none, of
    which the import of torch tells."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None
    if tuple(map(int, re.findall(r"\d+", version)[:2])) >= TORCH:
        return None
    needed, newest = version_words(TORCH), version_words(NEWEST_TORCH)
    return (
        f"dpbench needs torch {needed} or later, and torch {version} is installed; "
        f"pip install torch=={newest}.*"
    )


def version_words(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
