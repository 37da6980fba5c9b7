"""What a check measures, for how long, and how it is judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import monotonic

from dpbench import units
from dpbench.analysis.change import ALPHA
from dpbench.analysis.comparisons.matching import Side
from dpbench.analysis.comparisons.verdict import ALPHA_OF_A_LOOK, Verdict, assess, deciding
from dpbench.files import write_inside
from dpbench.messages import say
from dpbench.options.check import CheckOptions, CheckStored
from dpbench.options.reading import read_options
from dpbench.options.shared import MAX_WORD
from dpbench.options.sweep import SweepOptions
from dpbench.run.sweep.plan import SweepPlan
from dpbench.specs.command_line import CommandLine
from dpbench.specs.traits import SINGLE

Sides = tuple[Side, Side]
"""The baseline and the candidate."""
REPETITIONS_GROWTH = 1.5
"""How many times as many repetitions the next look at an inconclusive check has."""
MAX_LOOKS = 8
"""Most looks that ALPHA_OF_A_LOOK allows: with more, errors are more frequent than stated."""


def sweep_of_check(options: CheckOptions, folder: Path, *against: str) -> SweepOptions:
    """The sweep into this folder of the candidate, and of an implementation that it is compared
    with.

    Group sizes that were not asked for are the largest one, and 1 if `single` is measured. Raises
    UsageError.
    """
    given = options.model_dump(exclude_unset=True, exclude={*CheckStored.model_fields, "budget"})
    for name in ("warmup", "steps", "repetitions"):  # a sweep has other defaults
        given[name] = getattr(options, name)
    if options.candidate is None:
        given["batch_sizes"] = options.batch_sizes
    else:
        given["script"] = options.candidate
    if options.data_dir is not None:
        given["data_dir"] = options.data_dir.resolve()  # a revision has another directory
    given["implementations"] = (*options.measured_implementations, *against)
    given |= {"results_dir": folder.parent, "name": folder.name}
    alone = (1,) if SINGLE in given["implementations"] else ()
    given.setdefault("group_sizes", (*alone, MAX_WORD))
    return read_options(SweepOptions, given)


def for_verdict(plan: SweepPlan, options: SweepOptions, command: CommandLine) -> SweepPlan:
    """The planned sweep of the options without what no verdict uses: `single`, steps without
    synchronization and the phases of a step; its folder names the command of the check."""
    spec = plan.sweep.spec
    base = replace(spec.base, is_instrumented=False)
    spec = replace(spec, base=base, implementations=options.measured_implementations)
    return replace(plan, sweep=replace(plan.sweep, spec=spec, command=command))


def looks(options: CheckOptions, sides: Callable[[], Sides]) -> Iterator[int]:
    """Yield how many repetitions to have measured, until the verdict on `sides` is clear, more of
    them cannot change it, or would end after the budget.

    These are the interim analyses of a group-sequential test: a verdict that stopped at the first
    lucky repetition would be wrong more often than stated.
    """
    count, measured, started = options.repetitions, 0, monotonic()
    for look in range(1, MAX_LOOKS + 1):
        round_started = monotonic()
        yield count
        verdict, now = deciding(assess_sides(options, sides())), monotonic()
        can_change = verdict.outcome == "inconclusive" and verdict.change is not None
        is_spoiled = verdict.compared.machine_load.spoils_differences
        if look == MAX_LOOKS or is_spoiled or not can_change:
            return
        seconds = verdict.compared.repetition_seconds
        usual = median(seconds)
        # What the last round took beside its repetitions, as the start of new servers of ranks.
        overhead = max(0.0, now - round_started - sum(seconds[measured:]))
        fitting = math.floor((started + options.budget - now - overhead) / usual)
        more = min(math.ceil(REPETITIONS_GROWTH * count) - count, fitting)
        so_far = f"{verdict.outcome} after {count} repetitions"
        if more < 1:
            say(f"{so_far}: one more would end after the budget of {units.seconds(options.budget)}")
            return
        say(f"{so_far}: measuring {more} more, about {units.seconds(overhead + more * usual)}")
        count, measured = count + more, count


def keep_records(*folders: Path) -> None:
    """Say where the records of a check are, which Git leaves out of the user's repository."""
    for folder in folders:
        write_inside(folder / ".gitignore", b"*\n")
    say(f"records are in {' and '.join(map(str, folders))}")


def assess_sides(options: CheckStored, sides: Sides) -> tuple[Verdict, ...]:
    """The verdicts by the tolerances. Other environments are what --against-python is about."""
    return assess(
        *sides,
        options.tolerances,
        force=options.force or options.against_python is not None,
        alpha=ALPHA_OF_A_LOOK if options.baseline is None else ALPHA,
    )
