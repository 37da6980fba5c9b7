"""The Python and torch that dpbench needs; an older one is refused on import.

Neither is imported to find out: torch takes seconds. Nothing here may need a later Python than the
one that is refused.
"""

from __future__ import annotations

import platform
import re
import sys
from importlib import metadata
from pathlib import Path

PYTHON = "3.11"
TORCH = "2.9"
NEWEST_TORCH = "2.15"
"""The newest that `make matrix` was run with."""


def check_requirements() -> None:
    """Raise ImportError in one line where Python or torch is too old; a command ends with it."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = TORCH  # the import of torch tells that there is none
    reason = ""
    if is_older(platform.python_version(), PYTHON):
        reason = f"Python {PYTHON} or later, and this is {platform.python_version()}"
    elif is_older(torch, TORCH):
        remedy = f"pip install torch=={NEWEST_TORCH}.*"
        reason = f"torch {TORCH} or later, and torch {torch} is installed; {remedy}"
    if reason:
        # `dpbench` or `python -m dpbench`, and not a program that imports it.
        if Path(sys.argv[0] if sys.argv else "").name in ("dpbench", "-m"):
            sys.exit(f"dpbench: dpbench needs {reason}")
        raise ImportError(f"dpbench needs {reason}")


def is_older(version: str, least: str) -> bool:
    """Whether "2.8.1+cu124" comes before "2.9"."""
    first, second = (tuple(map(int, re.findall(r"\d+", text)[:2])) for text in (version, least))
    return first < second
