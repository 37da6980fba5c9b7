"""Where a number for a group size comes from: every predicted row says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["measured", "interpolated", "extrapolated", "projected", "refused"]
KINDS: tuple[Kind, ...] = ("measured", "interpolated", "extrapolated", "projected", "refused")

FARTHEST = 4
"""Times the largest that was measured, be it a group, a batch or a message: nothing is believed
beyond without another source."""

MEANINGS: dict[Kind, str] = {
    "measured": "measured at this group size",
    "interpolated": "between measured group sizes",
    "extrapolated": "beyond the largest measured group size, by a law or a scaled curve",
    "projected": "simulated on a network whose figures were given, not measured",
    "refused": "nothing that was measured supports a number",
}


def weaker(first: Kind, second: Kind) -> Kind:
    """The one that promises less: a number is of the kind of its weakest part."""
    return max(first, second, key=KINDS.index)


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedRow:
    """What every answer for a group size has besides its numbers; a refused one has none."""

    group_size: int
    kind: Kind
    reason: str | None = None
    """Why there are no numbers."""
