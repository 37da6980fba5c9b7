"""The axes of a sweep beside implementation, backend, group size and batch size: each a list."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from dpbench.errors import UsageError
from dpbench.settings import AUTO, Auto
from dpbench.specs import AXES, DEFAULTS, Variant
from dpbench.traits import IMPLEMENTATIONS


@dataclass(frozen=True, slots=True)
class Axes:
    """The values along each axis, by the field of a Variant."""

    values: Mapping[str, tuple[Any, ...]]

    def base(self, field: str) -> Any:
        """What the sweep itself says: the only value, or the first of several. It is None where one
        of several may be None, as None in a Variant keeps to the sweep."""
        values = self.values[field]
        return None if AXES[field].none and len(values) > 1 else values[0]

    def variants(self) -> tuple[Variant, ...]:
        """Every combination along the axes of several values; () if there is none."""
        several = {field: values for field, values in self.values.items() if len(values) > 1}
        if not several:
            return ()
        return tuple(
            Variant(**dict(zip(several, combination, strict=True)))
            for combination in product(*several.values())
        )


def combine(given: Mapping[str, tuple[Any, ...] | Auto], implementations: Collection[str]) -> Axes:
    """The axes by the values that were given; AUTO is the default of a trial, if it has one.

    Raises UsageError for a setting that none of the implementations has.
    """
    values = {}
    for field, several in given.items():
        if several is AUTO:  # what has no default is left to the machine
            values[field] = (DEFAULTS.get(field, AUTO),)
            continue
        values[field] = several
        _check_is_of_any(field, several, implementations)
    return Axes(values)


def _check_is_of_any(field: str, values: tuple[Any, ...], implementations: Collection[str]) -> None:
    having = [name for name, traits in IMPLEMENTATIONS.items() if traits.has_setting(field)]
    if {*having} & {*implementations}:
        return
    axis = AXES[field]
    remedy = having[0] if len(having) == 1 else "one of them"
    raise UsageError(
        f"{axis.option} {axis.text(values)}: it is an option of {', '.join(having)}, but "
        f"--implementations are {', '.join(implementations)}; add {remedy}, or leave "
        f"{axis.option} out",
        about=(axis.name, "implementations"),
    )
