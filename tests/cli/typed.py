"""Options of a sweep as they are typed, read without a command line."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from dpbench.cli.axes import Axes, combine
from dpbench.cli.options import defaults_as_typed, from_texts
from dpbench.cli.sweep_checks import ParsedOptions, parse
from dpbench.cli.sweep_options import SweepOptions
from dpbench.specs import AXES


def options_of(notes: list[str], **typed: Any) -> SweepOptions:
    """The options of a sweep, by the parameters of the command."""
    return from_texts(SweepOptions, {**defaults_as_typed(SweepOptions), **typed}, notes)


def parsed_options(**typed: Any) -> ParsedOptions:
    notes: list[str] = []
    return parse(options_of(notes, **typed), notes)


def axes_of(implementations: Collection[str], **typed: Any) -> Axes:
    options = options_of([], **typed)
    values = {field: getattr(options, axis.name) for field, axis in AXES.items()}
    return combine(values, implementations)
