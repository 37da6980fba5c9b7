"""How often a rank that waits for others looks whether they have come."""

from __future__ import annotations

LONGEST_PAUSE_SECONDS = 0.1


def pause_seconds(waited_seconds: float) -> float:
    """Until the next look: a tenth of the wait so far, so that a short one ends soon and a long
    one costs little.

    A store's own wait would need none of it, but is deaf to Ctrl-C.
    """
    return min(max(waited_seconds / 10, 1e-4), LONGEST_PAUSE_SECONDS)
