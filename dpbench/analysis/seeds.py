"""Spread over rows that differ only in their seed.

Repetitions of a row share its seed, so their losses repeat and their spread is rounding. Only other
seeds show how much a loss varies with other weights and another order of samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.estimate import Estimate, LogMean, mean
from dpbench.specs import TrialSpec


def with_seed_spread(
    rows: Sequence[ConfigurationSummary],
) -> tuple[ConfigurationSummary, ...]:
    """The rows, each with the losses of all seeds of its configuration, if there are several."""
    groups: dict[TrialSpec, list[ConfigurationSummary]] = {}
    for row in rows:
        if row.configuration is not None:
            groups.setdefault(_without_seed(row.configuration), []).append(row)
    return tuple(
        row
        if row.configuration is None
        else _with_spread(row, groups[_without_seed(row.configuration)])
        for row in rows
    )


def _with_spread(
    row: ConfigurationSummary, group: Sequence[ConfigurationSummary]
) -> ConfigurationSummary:
    if len(group) < 2:
        return row
    return replace(
        row, final_loss_over_seeds=_final_loss(group), time_to_loss_over_seeds=_time_to_loss(group)
    )


def _final_loss(group: Sequence[ConfigurationSummary]) -> Estimate | None:
    """Final loss over seeds; None unless every seed has one."""
    losses = [row.final_loss.value for row in group if row.final_loss is not None]
    return mean(losses, unit="loss") if len(losses) == len(group) else None


def _time_to_loss(group: Sequence[ConfigurationSummary]) -> Estimate | None:
    """Time to the loss over seeds; None unless every seed reached it: leaving one out would flatter
    the configuration."""
    times = [
        row.time_to_loss.seconds.value
        for row in group
        if row.time_to_loss is not None and row.time_to_loss.seconds is not None
    ]
    return LogMean.of_runs(times).estimate("s") if len(times) == len(group) else None


def _without_seed(spec: TrialSpec) -> TrialSpec:
    return replace(spec, workload=replace(spec.workload, seed=0))
