"""Source of a number for a group size, which every predicted row states."""

from __future__ import annotations

from typing import Literal

Provenance = Literal["measured", "interpolated", "extrapolated", "projected", "refused"]
"""From the strongest to the weakest."""

FARTHEST = 4
"""Largest multiple of the largest measured group size that is predicted without another source."""

MEANINGS: dict[Provenance, str] = {
    "measured": "measured at this group size",
    "interpolated": "between measured group sizes",
    "extrapolated": "beyond the largest measured group size",
    "projected": "simulated on a network that was described, not measured",
    "refused": "the measurements do not support a number",
}
