"""The columns of the tables that explain a step: what a cell says, what it is sorted by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dpbench import units
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.explanation import Explanation
from dpbench.analysis.factors import PARTS, Part
from dpbench.analysis.phases import PHASES, PhaseName, StepPhases
from dpbench.report.cells import percentage
from dpbench.report.meanings import MEANINGS
from dpbench.report.numbers import MISSING, compact_time, plus_minus


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplanationColumn:
    """One column of a table with a row an explanation."""

    header: str
    meaning: str
    cell: Callable[[Explanation], str]
    value: Callable[[Explanation], float | str | None]
    """What the cell is written from."""


def _estimate(
    header: str,
    meaning: str,
    read: Callable[[Explanation], Estimate | None],
    write: Callable[[Estimate], str],
) -> ExplanationColumn:
    def cell(explanation: Explanation) -> str:
        found = read(explanation)
        return MISSING if found is None else write(found)

    def value(explanation: Explanation) -> float | None:
        found = read(explanation)
        return None if found is None else found.value

    return ExplanationColumn(header=header, meaning=meaning, cell=cell, value=value)


def _seconds(
    header: str, meaning: str, of: Callable[[StepPhases], Estimate | None]
) -> ExplanationColumn:
    def read(explanation: Explanation) -> Estimate | None:
        return None if explanation.phases is None else of(explanation.phases)

    return _estimate(header, meaning, read, compact_time)


def _phase(name: PhaseName) -> ExplanationColumn:
    return _seconds(
        name.capitalize(),
        _PHASES[name],
        lambda phases: next((one.seconds for one in phases.phases if one.name == name), None),
    )


def _part(part: Part) -> ExplanationColumn:
    def cell(explanation: Explanation) -> str:
        factor = explanation.factors.of(part)
        if factor is None:
            return MISSING
        if factor.parts[0] != part:
            return f"in {factor.parts[0]}"
        return plus_minus(factor.value, two_after_one=False)

    def value(explanation: Explanation) -> float | None:
        factor = explanation.factors.of(part)
        return None if factor is None or factor.parts[0] != part else factor.value.value

    return ExplanationColumn(header=part.capitalize(), meaning=_PARTS[part], cell=cell, value=value)


def _reduced(explanation: Explanation) -> str:
    size = explanation.row.reduced_bytes_per_step
    return MISSING if size is None else units.bytes_binary(size)


def _collectives(explanation: Explanation) -> str:
    count = explanation.row.collectives_per_step
    return MISSING if count is None else f"{count:.3g}"


def _slowest(explanation: Explanation) -> str:
    slowest = explanation.slowest_rank
    if slowest is None:
        return MISSING
    return f"{slowest.rank} (in {slowest.slowest_in} of {slowest.repetitions})"


_PARTS: dict[Part, str] = {
    "granularity": (
        "`single` on the global batch ÷ (replicas × `single` on a shard), a ratio of step times; "
        "strong scaling only."
    ),
    "contention": (
        "Step of `single` ÷ the mean step of as many `independent` copies: what sharing the "
        "machine costs."
    ),
    "wrapper": "Those copies ÷ the mean rank without synchronization: hooks, buckets.",
    "balance": "The mean rank ÷ the slowest rank, without synchronization.",
    "communication": (
        "The slowest rank without ÷ with synchronization: what overlap does not hide."
    ),
}
_PHASES: dict[PhaseName, str] = {
    "data": "Time until the batch is on the device.",
    "forward": "Time of forward and loss.",
    "backward": "Time of backward without synchronization.",
    "communication": "Backward with synchronization − backward without it.",
    "optimizer": "Time of the optimizer's step and of zeroing gradients.",
}

CONFIGURATION = ExplanationColumn(
    header="Configuration",
    meaning="Implementation/backend × number of replicas, batch.",
    cell=lambda explanation: explanation.row.label,
    value=lambda explanation: explanation.row.label,
)
EFFICIENCY = (
    CONFIGURATION,
    _estimate(
        "Efficiency",
        "Speedup over group size 1 of the same implementation and backend ÷ number of replicas.",
        lambda e: e.row.efficiency,
        percentage,
    ),
    _estimate(
        "Absolute\nefficiency",
        "Speedup over `single` ÷ number of replicas; the factors of a row multiply to it.",
        lambda e: e.factors.efficiency,
        percentage,
    ),
    *map(_part, PARTS),
)
STEP = (
    CONFIGURATION,
    _estimate(
        "Step",
        "Mean time of a step with synchronization, of the slowest rank.",
        lambda e: e.factors.step_seconds,
        compact_time,
    ),
    _estimate(
        "Exposed\ncomm",
        MEANINGS["exposed_communication_seconds"],
        lambda e: e.row.exposed_communication_seconds,
        compact_time,
    ),
    ExplanationColumn(
        header="Reduced\n/step",
        meaning=MEANINGS["reduced_bytes_per_step"],
        cell=_reduced,
        value=lambda explanation: explanation.row.reduced_bytes_per_step,
    ),
    ExplanationColumn(
        header="Collectives\n/step",
        meaning=MEANINGS["collectives_per_step"],
        cell=_collectives,
        value=lambda explanation: explanation.row.collectives_per_step,
    ),
    _estimate(
        "Rank\nskew",
        MEANINGS["rank_skew"],
        lambda e: e.row.rank_skew,
        percentage,
    ),
    ExplanationColumn(
        header="Slowest rank",
        meaning="The rank that most often took longest, and in how many repetitions.",
        cell=_slowest,
        value=lambda e: None if e.slowest_rank is None else float(e.slowest_rank.rank),
    ),
)
PHASE_TIMES = (
    CONFIGURATION,
    *map(_phase, PHASES),
    _seconds(
        "Instrumented\nstep",
        "Sum of the phases: a step that waits for the device after each of them.",
        lambda phases: phases.instrumented_step_seconds,
    ),
    _seconds(
        "Timed\nstep",
        "Mean step of the timed window, over ranks.",
        lambda phases: phases.timed_step_seconds,
    ),
)
