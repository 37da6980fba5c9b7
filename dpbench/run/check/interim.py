"""When a check looks at what it has measured: the interim analyses of a group-sequential test.

A verdict that stopped at the first lucky repetition would be wrong more often than stated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import zip_longest
from time import monotonic

from dpbench import units
from dpbench.messages import option_words, say
from dpbench.options.check import CheckOptions
from dpbench.run.check.plan import Sides, assess_sides

MAX_ANALYSES = 5
"""Most analyses that ALPHA_OF_A_LOOK allows: with more, errors are more frequent than stated."""
GROWTH = 1.5
"""How many times as many repetitions the next analysis has."""


def interim_analyses(options: CheckOptions, sides: Callable[[], Sides]) -> Iterator[int]:
    """Yield how many repetitions to have measured, until more of them cannot change the verdict on
    `sides` or the budget leaves no time for the next analysis; says what is planned and why it
    stops."""
    planned = [options.repetitions]  # 5, 8, 12, 18, 27
    while len(planned) < MAX_ANALYSES:
        planned.append(math.ceil(GROWTH * planned[-1]))
    budget = f"{option_words('budget')} {units.seconds(options.budget)}"
    say(
        f"at least {planned[0]} repetitions; while inconclusive, up to {planned[-1]} as long as "
        f"{budget} lasts"
    )
    started = monotonic()
    for done, further in zip_longest(planned, planned[1:]):
        yield done
        verdict, spent = assess_sides(options, sides()), monotonic() - started
        if not verdict.needs_repetitions:
            return
        more = (further or done) - done
        takes = more * spent / done
        if verdict.disturbance.is_heavy:
            why = verdict.disturbance.note
        elif further is None:
            why = "another look would make an error too likely"
        elif spent + takes > options.budget:
            why = f"{budget} leaves no time for {more} more, about {units.seconds(takes)}"
        else:
            continue
        say(f"stopping after {units.counted(done, 'repetition')} without a verdict: {why}")
        return
