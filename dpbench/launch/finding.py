"""A number that was read of the machine, its limit, and what to do where it is above it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dpbench import units

Verdict = Literal["ok", "warning", "not readable"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that was looked at; a `value` above the `limit` is a warning."""

    kind: str
    value: float | None
    """None: not readable, which is no good sign and no bad one."""
    unit: str
    limit: float
    text: str
    advice: str | None
    """What would help; None unless this is a warning."""

    @property
    def verdict(self) -> Verdict:
        if self.value is None:
            return "not readable"
        return "warning" if self.value > self.limit else "ok"


def judged(
    kind: str, value: float | None, unit: str, limit: float, text: str, advice: str
) -> Finding:
    """The finding, with its advice only where the value is above the limit."""
    beyond = value is not None and value > limit
    return Finding(
        kind=kind,
        value=value,
        unit=unit,
        limit=limit,
        text=text,
        advice=advice if beyond else None,
    )


def usable_cores(count: int) -> str:
    """Writes "2 usable cores"."""
    return units.counted(count, "usable core")
