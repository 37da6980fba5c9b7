"""Paths of the folders that ship with dpbench: beside it in a checkout, within it in a wheel.

No links stand for them: not every copy of a checkout keeps links.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parent
_IN_WHEEL = PACKAGE / "_shipped"
"""Their folder in a wheel, according to `tool.setuptools.package-dir` in pyproject.toml."""

ARCHITECTURES = _IN_WHEEL / "architectures"
RESULTS = _IN_WHEEL / "results"
"""Holds a measured sweep, `examples`, and scaling tables that others have published."""
if not _IN_WHEEL.is_dir():
    ARCHITECTURES = PACKAGE.with_name("architectures")
    RESULTS = PACKAGE.with_name("results")
