"""Text and JSON of `dpbench calibrate`: the noise of a machine, and what a check can see there."""

from __future__ import annotations

import shlex
from typing import Any

from dpbench import units
from dpbench.analysis.comparisons.calibration import (
    REPETITIONS,
    SUPPORTED,
    TOLERANCES,
    Calibration,
    Noise,
    Rehearsal,
)
from dpbench.report.answer import Answer, bullets, with_ends
from dpbench.report.numbers import rounded
from dpbench.report.table import text_table

MOST_SHOWN = 1000
"""Repetitions; more than these nobody runs."""


def answer(calibration: Calibration, folder: str, beside: str) -> Answer:
    """The spread of every configuration, what it supports, a rehearsal, and the command.

    `beside` are the options of a check that measures both sides in one job.
    """
    headers = ("Configuration", "Spread", *(f"{n} runs" for n in REPETITIONS), "n")
    table = text_table(headers, map(_cells, calibration.rows), words=headers[:2])
    notes = [
        "spread: standard deviation between whole runs, relative, with its 95 % interval "
        "(chi-square); n runs. Then the tolerance that so many runs a side support: an unchanged "
        "candidate passes, and one slower by as much is noticed, in 4 of 5 cases",
        _needed(calibration.noisiest),
        *_rehearsed(calibration.rehearsal),
        *_between(calibration, folder, beside),
    ]
    last = command(calibration, folder, beside) or _too_noisy(calibration.noisiest)
    return Answer(paragraphs=(table, bullets(notes), last), data=_data(calibration, folder, beside))


def command(calibration: Calibration, folder: str, beside: str) -> str | None:
    """The check that the noise allows, on the same configurations; None if it allows none.

    A stored baseline only where a second occasion has shown that its numbers last.
    """
    if calibration.supported is None:
        return None
    tolerance, repetitions = calibration.supported
    lasts = calibration.occasions is not None and calibration.occasions.hold
    against = f"--baseline {shlex.quote(folder)}" if lasts else beside
    return f"dpbench check {against} --tolerance {100 * tolerance:g}% --repetitions {repetitions}"


def _between(calibration: Calibration, folder: str, beside: str) -> list[str]:
    """Whether a stored baseline can be used."""
    if calibration.supported is None:
        return []
    found = calibration.occasions
    if found is None:
        return [
            "whether these numbers last until another job or day was not measured, so that no "
            f"stored baseline is advised: measure again later with --again {shlex.quote(folder)}; "
            f"{beside} measures both sides in one job"
        ]
    moved = f"since {found.earlier} the speeds moved by up to {units.percent(found.largest)}"
    tolerance = units.exact_percent(found.tolerance)
    if found.hold:
        return [f"{moved}, surely within {tolerance}: a stored baseline can be used"]
    return [
        f"{moved}, not surely within {tolerance}: a stored baseline would raise false alarms; "
        f"{beside} measures both sides in one job"
    ]


def _too_noisy(noisiest: Noise) -> str:
    return (
        f"No check: runs of {noisiest.label} differ so much that {REPETITIONS[-1]} of them do not "
        f"support a tolerance of {units.exact_percent(SUPPORTED[-1])}. Use a quieter "
        "machine or more --steps."
    )


def _data(calibration: Calibration, folder: str, beside: str) -> dict[str, Any]:
    """Spreads and tolerances are fractions, 0.01 is 1 %."""
    rehearsal = calibration.rehearsal
    return {
        "rows": [
            {
                "configuration": row.label,
                **with_ends("spread", row.spread),
                "repetitions": row.spread.sample_size,
                "tolerance_supported": {str(n): row.tolerance(n) for n in REPETITIONS},
                "repetitions_needed": {f"{t:g}": row.repetitions(t) for t in TOLERANCES},
            }
            for row in calibration.rows
        ],
        "rehearsal": None
        if rehearsal is None
        else {
            "tolerance": rehearsal.tolerance,
            "repetitions": rehearsal.repetitions,
            **rehearsal.outcomes,
        },
        "occasions": None
        if calibration.occasions is None
        else {
            "earlier": calibration.occasions.earlier,
            "tolerance": calibration.occasions.tolerance,
            "largest_change": calibration.occasions.largest,
            "hold": calibration.occasions.hold,
        },
        "command": command(calibration, folder, beside),
    }


def _cells(row: Noise) -> list[str]:
    tolerances = (units.percent(row.tolerance(n)) for n in REPETITIONS)
    return [
        row.label,
        f"{rounded(row.spread, scale=100)} %",
        *tolerances,
        str(row.spread.sample_size),
    ]


def _needed(noisiest: Noise) -> str:
    counts = ((tolerance, noisiest.repetitions(tolerance)) for tolerance in TOLERANCES)
    listed = ", ".join(
        f"{units.exact_percent(share)} takes {_count(count)}" for share, count in counts
    )
    return f"the noisiest row decides ({noisiest.label}): a tolerance of {listed} runs a side"


def _count(repetitions: int | None) -> str:
    few = repetitions is not None and repetitions <= MOST_SHOWN
    return str(repetitions) if few else f"over {MOST_SHOWN:,}"


def _rehearsed(rehearsal: Rehearsal | None) -> list[str]:
    if rehearsal is None:
        return []
    counts = rehearsal.outcomes
    return [
        f"rehearsal with {units.exact_percent(rehearsal.tolerance)}, {rehearsal.repetitions} runs "
        "a side of what was measured against the others: of "
        f"{units.counted(sum(counts.values()), 'row')} {counts['regressed']} regressed (false "
        f"alarms), {counts['pass']} pass, {counts['inconclusive']} inconclusive",
    ]
