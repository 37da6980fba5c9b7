"""What node 0 says of those who are no nodes: a line for each address, however often they come.

A port scan, or a health check that connects every second, must not bury what the sweep says.
"""

from __future__ import annotations

import threading
from collections import Counter

from dpbench import units
from dpbench.launch.nodes.node import Say

MOST_ADDRESSES = 64
"""That are named; whoever has a whole IPv6 network could use up any number."""
OTHERS = "other addresses"


class TurnedAway:
    """Says the first of each address at once, and at the end how many came after it."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._counts: Counter[str] = Counter()
        self._over = False
        self._lock = threading.Lock()

    def add(self, address: str, reason: str) -> None:
        with self._lock:
            if self._over:  # who was still silent then disturbs nobody
                return
            if address not in self._counts and len(self._counts) >= MOST_ADDRESSES:
                address = OTHERS
            self._counts[address] += 1
            if self._counts[address] == 1:
                self._say(
                    f"turned away who came from {address}: {reason}; more of them are counted"
                )

    def sum_up(self) -> None:
        """The counts, of those who came more than once; nothing is said after that."""
        with self._lock:
            self._over = True
            for address, count in self._counts.items():
                if count > 1:
                    times = units.counted(count, "connection")
                    self._say(f"turned away {times} from {address}")
