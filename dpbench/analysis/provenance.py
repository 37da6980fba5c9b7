"""Source of a number for a group size, which every predicted row states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Provenance = Literal["measured", "interpolated", "extrapolated", "projected", "refused"]
KINDS: tuple[Provenance, ...] = get_args(Provenance)
"""From the strongest to the weakest."""

FARTHEST = 4
"""Largest multiple of the largest measured group, batch or message that is believed without another
source."""

MEANINGS: dict[Provenance, str] = {
    "measured": "measured at this group size",
    "interpolated": "between measured group sizes",
    "extrapolated": "beyond the largest measured group size, by a law or a scaled curve",
    "projected": "simulated on a network whose figures were given, not measured",
    "refused": "nothing that was measured supports a number",
}


def weaker(first: Provenance, second: Provenance) -> Provenance:
    """The weaker of two kinds: a number has the kind of its weakest part."""
    return max(first, second, key=KINDS.index)


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedRow:
    """Fields of every answer for a group size besides its numbers; a refused one has no numbers."""

    group_size: int
    kind: Provenance
    reason: str | None = None
    """Reason why there are no numbers."""
