"""Records to summaries: groups repetitions, finds baselines, leaves nothing unsaid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpbench import units
from dpbench.analysis import convergence, throughput
from dpbench.analysis.configuration import ConfigurationSummary, in_order, with_note
from dpbench.analysis.estimate import Estimate, LogMean, mean
from dpbench.analysis.memory import UNBALANCED, memory_imbalance, peak_memory
from dpbench.analysis.outcome import effective_status, outcome
from dpbench.analysis.scaling import BASELINE, efficiency, speedup
from dpbench.environment import comparable
from dpbench.records import Status, TrialRecord
from dpbench.specs import TrialSpec, differing_fields


@dataclass(frozen=True, kw_only=True, slots=True)
class _Speed:
    """The trusted speed of a configuration and where it was measured."""

    throughput: LogMean
    environments: frozenset[str]


def summarize(records: Sequence[TrialRecord]) -> tuple[ConfigurationSummary, ...]:
    """One row per configuration, sorted by implementation, backend, group size, batch size."""
    groups: dict[TrialSpec, list[TrialRecord]] = {}
    for record in records:
        groups.setdefault(record.trial.configuration, []).append(record)
    final = {spec: _last_of_each_trial(group) for spec, group in groups.items()}
    usable = {spec: usable_repetitions(group) for spec, group in final.items()}
    speeds = {
        spec: _Speed(
            throughput=throughput.throughput_mean(group),
            environments=frozenset(comparable(record.environment_id) for record in group),
        )
        for spec, group in usable.items()
        if group
    }
    rows = []
    for spec, group in final.items():
        row = _with_metrics(_plain_row(spec, group), usable[spec])
        row = with_note(row, *_group_notes(row.label, groups[spec], group, usable[spec]))
        rows.append(_with_scaling(row, spec, speeds))
    return in_order(_mark_look_alikes(rows))


def usable_repetitions(repetitions: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The repetitions whose speed may be believed: none at all if any had wrong gradients."""
    statuses = [effective_status(record) for record in repetitions]
    if Status.WRONG_GRADIENTS in statuses:
        return []
    return [
        record
        for record, status in zip(repetitions, statuses, strict=True)
        if status is Status.COMPLETED and throughput.is_measured(record)
    ]


def _last_of_each_trial(group: Sequence[TrialRecord]) -> list[TrialRecord]:
    """A trial that was run again counts once, as it ended last."""
    return list({record.trial.repetition: record for record in group}.values())


def _plain_row(spec: TrialSpec, group: Sequence[TrialRecord]) -> ConfigurationSummary:
    end = outcome(group)
    return ConfigurationSummary(
        implementation=spec.implementation_label,
        backend=spec.backend,
        group_size=spec.group_size,
        batch_size=spec.batch_size,
        global_batch_size=spec.global_batch_size,
        item=group[-1].item,
        status=end.status,
        reason=end.reason,
        verified=end.verified,
        repetitions=sum(effective_status(record) is Status.COMPLETED for record in group),
        timed_steps=spec.timed_steps,
        configuration=spec,
    )


def _with_metrics(row: ConfigurationSummary, usable: Sequence[TrialRecord]) -> ConfigurationSummary:
    if not usable:
        return row
    memory = peak_memory(usable)
    pooled = np.concatenate([throughput.step_seconds(record) for record in usable])
    p50, p95 = np.percentile(pooled, (50, 95))
    loss_values, loss_notes = _loss_metrics(row.label, usable)
    row = replace(
        row,
        throughput=throughput.throughput_mean(usable).estimate(f"{row.item}/s"),
        exposed_communication_seconds=_over_repetitions(
            usable, throughput.exposed_communication_seconds, "s"
        ),
        peak_memory_bytes=memory.bytes if memory else None,
        peak_memory_kind=memory.kind if memory else None,
        step_seconds_p50=float(p50),
        step_seconds_p95=float(p95),
        **loss_values,
    )
    return with_note(row, *loss_notes)


def _over_repetitions(
    usable: Sequence[TrialRecord], metric: Callable[[TrialRecord], float | None], unit: str
) -> Estimate | None:
    values = [value for value in map(metric, usable) if value is not None]
    return mean(values, unit=unit) if values else None


def _loss_metrics(
    label: str, usable: Sequence[TrialRecord]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    runs = [(convergence.losses(record), record) for record in usable]
    runs = [(losses, record) for losses, record in runs if losses]
    finite = [(losses, record) for losses, record in runs if convergence.is_finite(losses)]
    notes = []
    if len(finite) < len(runs):
        bad = units.counted(len(runs) - len(finite), "completed repetition")
        notes.append(f"{label}: losses of {bad} are not finite and left out")
    if not finite:
        return {}, tuple(notes)
    values = {
        "loss_delta_per_step": mean(
            [convergence.loss_delta_per_step(losses) for losses, _ in finite], unit="per step"
        ),
        "loss_delta_per_second": mean(
            [
                convergence.loss_delta_per_second(losses, throughput.elapsed_seconds(record))
                for losses, record in finite
            ],
            unit="per s",
        ),
        "final_loss": mean([losses[-1] for losses, _ in finite], unit="loss"),
    }
    return values, tuple(notes)


def _group_notes(
    label: str,
    all_runs: Sequence[TrialRecord],
    final: Sequence[TrialRecord],
    usable: Sequence[TrialRecord],
) -> list[str]:
    notes = []
    if again := len(all_runs) - len(final):
        notes.append(f"{label}: {units.counted(again, 'trial')} run again; the last record counts")
    environments = sorted({comparable(record.environment_id) for record in usable})
    if len(environments) > 1:
        notes.append(
            f"{label}: its repetitions come from {len(environments)} environments "
            f"({', '.join(environments)}); their spread is not only noise"
        )
    completed = [record for record in final if effective_status(record) is Status.COMPLETED]
    if empty := sum(not throughput.is_measured(record) for record in completed):
        notes.append(
            f"{label}: {units.counted(empty, 'completed repetition')} without a timed window, "
            "left out of the speed"
        )
    imbalance = memory_imbalance(usable)
    if imbalance is not None and imbalance > UNBALANCED:
        notes.append(f"{label}: one rank holds {imbalance:.2f} × the mean peak memory of the ranks")
    return notes


def _with_scaling(
    row: ConfigurationSummary, spec: TrialSpec, speeds: Mapping[TrialSpec, _Speed]
) -> ConfigurationSummary:
    if (own := speeds.get(spec)) is None:
        return row
    relative = _baseline(spec, spec.implementation, spec.backend)
    absolute = replace(_baseline(spec, "single", "none"), sync_every=1)
    gain, notes = _against(relative, spec, own, speeds, row.label)
    absolute_gain, absolute_notes = _against(absolute, spec, own, speeds, row.label)
    if gain is None:
        notes.append(
            f"{row.label}: no speedup, because {relative.label} on the same devices "
            "has no completed run"
        )
    row = replace(
        row,
        speedup=gain,
        absolute_speedup=absolute_gain,
        efficiency=None if gain is None else efficiency(gain, spec.group_size),
    )
    return with_note(row, *dict.fromkeys([*notes, *absolute_notes]))


def _baseline(spec: TrialSpec, implementation: str, backend: str) -> TrialSpec:
    """The same work on the first replica alone."""
    return replace(
        spec,
        implementation=implementation,
        backend=backend,
        group_size=1,
        devices=spec.devices[:1],
    )


def _against(
    baseline: TrialSpec,
    spec: TrialSpec,
    own: _Speed,
    speeds: Mapping[TrialSpec, _Speed],
    label: str,
) -> tuple[Estimate | None, list[str]]:
    if baseline == spec:
        return BASELINE, []
    if (base := speeds.get(baseline)) is None:
        return None, []
    notes = []
    if base.environments != own.environments:
        notes.append(
            f"{label}: compared with {baseline.label} from another environment "
            f"({', '.join(sorted(base.environments))})"
        )
    return speedup(base.throughput, own.throughput), notes


def _mark_look_alikes(rows: Sequence[ConfigurationSummary]) -> list[ConfigurationSummary]:
    """Notes on rows that a table cannot tell apart, although they ran something different."""
    seen: dict[str, TrialSpec] = {}
    marked = []
    for row in rows:
        assert row.configuration is not None
        first = seen.setdefault(row.label, row.configuration)
        if first != row.configuration:
            different = "; ".join(differing_fields(row.configuration, first))
            row = with_note(row, f"{row.label} appears more than once; they differ in {different}")
        marked.append(row)
    return marked
