"""Repetitions that a check adds while its verdict is inconclusive."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from time import monotonic

from dpbench import units
from dpbench.messages import say

MOST_LOOKS = 5
"""Most looks that ALPHA_OF_A_LOOK allows: with more, errors are more frequent than stated."""
GROWTH = 1.5
"""How many times as many repetitions the next look has. A verdict that stopped at the first lucky
repetition would be wrong more often."""


def sizes(first: int) -> list[int]:
    """Numbers of repetitions at which the verdict is looked at: 5, 8, 12, 18, 27."""
    found = [first]
    while len(found) < MOST_LOOKS:
        found.append(math.ceil(GROWTH * found[-1]))
    return found


def looks(first: int, budget_seconds: float, is_settled: Callable[[], bool]) -> Iterator[int]:
    """Yield how many repetitions to have measured, until the verdict on them is settled or the
    budget leaves no time for the next look; says why it stops unsettled."""
    started, done = monotonic(), 0
    for size in sizes(first):
        if done:
            if is_settled():
                return
            spent, budget = monotonic() - started, units.seconds(budget_seconds)
            takes = (size - done) * spent / done
            if spent + takes > budget_seconds:
                say(
                    f"not settled after {units.counted(done, 'repetition')} and "
                    f"{units.seconds(spent)}: --budget {budget} leaves no time for "
                    f"{size - done} more, about {units.seconds(takes)}"
                )
                return
            say(
                f"not settled yet: up to {units.counted(size, 'repetition')}; "
                f"{units.seconds(spent)} of {budget} used"
            )
        yield size
        done = size
    if not is_settled():
        say(
            f"not settled after {units.counted(done, 'repetition')}; another look would make an "
            "error too likely"
        )
