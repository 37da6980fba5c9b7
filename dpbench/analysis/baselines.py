"""Speedups of a sweep: which configuration is compared with which, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dpbench.analysis import throughput
from dpbench.analysis.configuration import ConfigurationSummary, with_note
from dpbench.analysis.estimate import FEWEST_PAIRS, Estimate, LogMean, paired_ratio
from dpbench.analysis.scaling import BASELINE, efficiency, speedup
from dpbench.environment import comparable
from dpbench.records import TrialRecord
from dpbench.specs import TrialSpec

ALONE = "its group size 1 on the same devices"
"""Rows that lack it say so in the same words, and share a line below the table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """The trusted speed of a configuration and where it was measured."""

    throughput: LogMean
    by_repetition: Mapping[int, float]
    """Items per second of each repetition."""
    environments: frozenset[str]

    @classmethod
    def of(cls, usable: Sequence[TrialRecord]) -> Speed:
        return cls(
            throughput=throughput.throughput_mean(usable),
            by_repetition={r.trial.repetition: throughput.throughput(r) for r in usable},
            environments=frozenset(
                comparable(name) for record in usable for name in record.environment_ids
            ),
        )


def with_scaling(
    row: ConfigurationSummary, spec: TrialSpec, speeds: Mapping[TrialSpec, Speed]
) -> ConfigurationSummary:
    """Adds speedup and efficiency, or a note that says which baseline is missing."""
    if (own := speeds.get(spec)) is None:
        return row
    gain, notes = _against(spec.of_one_replica, spec, own, speeds, ALONE)
    absolute_gain, absolute_notes = _against(
        spec.baseline, spec, own, speeds, spec.baseline.implementation
    )
    if gain is None:
        notes.append(f"no speedup, because {ALONE} has no completed run")
    row = replace(
        row,
        speedup=gain,
        absolute_speedup=absolute_gain,
        efficiency=None if gain is None else efficiency(gain, spec.group_size),
    )
    found = dict.fromkeys([*notes, *absolute_notes])
    return with_note(row, *(f"{row.label}: {note}" for note in found))


def _against(
    baseline: TrialSpec,
    spec: TrialSpec,
    own: Speed,
    speeds: Mapping[TrialSpec, Speed],
    called: str,
) -> tuple[Estimate | None, list[str]]:
    if baseline == spec:
        return BASELINE, []
    if (base := speeds.get(baseline)) is None:
        return None, []
    notes = []
    if base.environments != own.environments:
        notes.append(
            f"compared with {called} from another environment "
            f"({', '.join(sorted(base.environments))})"
        )
    return gain(base, own), notes


def gain(base: Speed, own: Speed) -> Estimate:
    """Speedup; paired by pass of the palindrome where both sides have the same ones, and enough."""
    passes = sorted(own.by_repetition)
    if len(passes) < FEWEST_PAIRS or base.by_repetition.keys() != own.by_repetition.keys():
        return speedup(base.throughput, own.throughput)
    return paired_ratio(
        [own.by_repetition[number] for number in passes],
        [base.by_repetition[number] for number in passes],
    )
