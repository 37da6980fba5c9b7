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
        count = units.counted(done, "repetition")
        if not verdict.needs_repetitions:
            return
        if verdict.disturbance.is_heavy:
            say(f"stopping after {count}, as more cannot decide: {verdict.disturbance.note}")
            return
        if further is None:
            say(f"not settled after {count}; another look would make an error too likely")
            return
        takes = (further - done) * spent / done
        if spent + takes > options.budget:
            say(
                f"not settled after {count} and {units.seconds(spent)}: {budget} leaves no time "
                f"for {further - done} more, about {units.seconds(takes)}"
            )
            return
        say(
            f"not settled yet: up to {units.counted(further, 'repetition')}; "
            f"{units.seconds(spent)} of {units.seconds(options.budget)} used"
        )
