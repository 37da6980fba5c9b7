"""The fields of an explanation: the columns of the tables that say where a step's time goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dpbench.analysis.diagnosis.explanation import (
    PHASES,
    REPLICA_PHASES,
    Explanation,
    PhaseName,
    ReplicaPhaseName,
    StepPhases,
)
from dpbench.analysis.diagnosis.factors import PARTS, Part
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.fields import Field, ReadField, Value
from dpbench.analysis.levels import COLUMNS


@dataclass(frozen=True, slots=True)
class InsideFactor:
    """A part that has no factor of its own, and the part whose factor includes it."""

    part: Part

    @property
    def plain(self) -> None:
        return None


_PARTS: dict[Part, str] = {
    "granularity": "`single` on the global batch ÷ (replicas × `single` on a shard), a ratio of "
    "step times; strong scaling only.",
    "contention": "Step of `single` ÷ the mean step of as many `independent` copies: the cost of "
    "sharing the machine.",
    "wrapper": "Mean step of `independent` copies ÷ the mean rank without synchronization: the "
    "cost of hooks and buckets.",
    "balance": "The mean rank ÷ the slowest rank, without synchronization.",
    "stragglers": "The slowest rank's mean step ÷ the mean over steps of the rank that is slowest "
    "in each, without synchronization: waiting for ranks that are slow in single steps.",
    "communication": "The mean of the slowest rank in each step without ÷ the step with "
    "synchronization: communication that overlap does not hide.",
}
_PHASES: dict[PhaseName, str] = {
    "data": "Time until the batch is on the device.",
    "forward": "Time of forward and loss.",
    "backward": "Time of backward without synchronization.",
    "communication": "Backward with synchronization − backward without it.",
    "optimizer": "Time of the optimizer's step and of zeroing gradients.",
}

_REPLICA_PHASES: dict[ReplicaPhaseName, str] = {
    "scatter": "Part of forward: time of splitting the batch over the replicas.",
    "replicate": "Part of forward: time of giving each replica its module.",
    "compute": "Part of forward and backward: time until the slowest replica is done.",
    "gather": "Part of forward: time of putting the outputs together.",
    "reduce": "Part of backward: time of adding up the replicas' gradients.",
}


def _part(part: Part) -> ReadField[Explanation]:
    def read(explanation: Explanation) -> Value:
        factor = explanation.factors.of(part)
        if factor is None:
            return None
        return factor.value if factor.parts[0] == part else InsideFactor(factor.parts[0])

    return ReadField(
        key=part, header=part.capitalize(), meaning=_PARTS[part], style="ratio", read=read
    )


def _seconds(
    key: str, header: str, meaning: str, of: Callable[[StepPhases], Estimate | None]
) -> ReadField[Explanation]:
    return ReadField(
        key=key,
        header=header.replace("\n", " "),
        meaning=meaning,
        unit="s",
        style="time",
        read=lambda e: None if e.phases is None else of(e.phases),
    )


def _phase(name: PhaseName) -> ReadField[Explanation]:
    return _seconds(
        name,
        name.capitalize(),
        _PHASES[name],
        lambda phases: next((one.seconds for one in phases.phases if one.name == name), None),
    )


def _replica_phase(name: ReplicaPhaseName) -> ReadField[Explanation]:
    return _seconds(
        name,
        name.capitalize(),
        f"{_REPLICA_PHASES[name]} One process that drives all replicas (dp) only.",
        lambda phases: phases.of_replicas.get(name),
    )


def _of_row(key: str) -> ReadField[Explanation]:
    """The column that tables of configurations have too."""
    column = COLUMNS[key]
    return ReadField(
        **{name: getattr(column, name) for name in Field.__dataclass_fields__},
        read=lambda e: column.read(e.row),
    )


CONFIGURATION: ReadField[Explanation] = ReadField(
    key="configuration",
    kind="text",
    header="Configuration",
    meaning="Implementation/backend × number of replicas, batch.",
    read=lambda e: e.row.label,
)
FACTOR_FIELDS: tuple[ReadField[Explanation], ...] = (
    CONFIGURATION,
    _of_row("efficiency"),
    ReadField(
        key="absolute_efficiency",
        header="Absolute efficiency",
        meaning="Speedup over `single` ÷ number of replicas; the factors of a row multiply to it.",
        style="percent",
        read=lambda e: e.factors.efficiency,
    ),
    *map(_part, PARTS),
)
STEP_COST_FIELDS: tuple[ReadField[Explanation], ...] = (
    CONFIGURATION,
    ReadField(
        key="step_seconds",
        header="Step",
        meaning="Mean time of a step with synchronization, on the slowest rank.",
        unit="s",
        style="time",
        read=lambda e: e.factors.step_seconds,
    ),
    _of_row("exposed_communication_seconds"),
    _of_row("reduced_bytes_per_step"),
    _of_row("collectives_per_step"),
    _of_row("rank_skew"),
    ReadField(
        key="slowest_rank",
        kind="integer",
        header="Slowest rank",
        meaning="Rank that most often took longest, and in how many repetitions.",
        read=lambda e: e.slowest_rank,
    ),
)
PHASE_FIELDS: tuple[ReadField[Explanation], ...] = (
    CONFIGURATION,
    *map(_phase, PHASES),
    *map(_replica_phase, REPLICA_PHASES),
    _seconds(
        "instrumented_step",
        "Instrumented\nstep",
        "Sum of the phases: a step that waits for the device after each of them.",
        lambda phases: phases.instrumented_step_seconds,
    ),
    _seconds(
        "timed_step",
        "Timed\nstep",
        "Mean step of the timed window, over ranks.",
        lambda phases: phases.timed_step_seconds,
    ),
)
