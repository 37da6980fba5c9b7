"""Options of a sweep as they are typed, read without a command line."""

from __future__ import annotations

from typing import Any

from dpbench.options.bridge import Layer, read
from dpbench.options.sweep import SweepOptions


def parsed_options(**typed: Any) -> SweepOptions:
    return read(SweepOptions, Layer("", typed))
