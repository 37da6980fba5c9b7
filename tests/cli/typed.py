"""Options of a sweep as they are typed, read without a command line."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from dpbench.run.sweep.checks import ParsedOptions, parse_sweep_options
from dpbench.run.sweep.options import SweepOptions
from dpbench.run.sweep.rules import Axes, combine
from dpbench.specs import AXES
from dpbench.specs.settings import defaults_as_typed, from_texts


def options_of(notes: list[str], **typed: Any) -> SweepOptions:
    """The options of a sweep, by the parameters of the command."""
    return from_texts(SweepOptions, {**defaults_as_typed(SweepOptions), **typed}, notes)


def parsed_options(**typed: Any) -> ParsedOptions:
    notes: list[str] = []
    return parse_sweep_options(options_of(notes, **typed), notes)


def axes_of(implementations: Collection[str], **typed: Any) -> Axes:
    options = options_of([], **typed)
    values = {field: getattr(options, axis.name) for field, axis in AXES.items()}
    return combine(values, implementations)
