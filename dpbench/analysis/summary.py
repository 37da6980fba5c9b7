"""Records to summaries: groups repetitions and computes every metric, with notes on what is
missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from dpbench import units
from dpbench.analysis import throughput
from dpbench.analysis.configuration import (
    ConfigurationSummary,
    by_configuration,
    effective_status,
    in_order,
    outcome,
    usable_repetitions,
    with_note,
)
from dpbench.analysis.diagnosis.hints import is_disturbed
from dpbench.analysis.estimate import Estimate, LogMean, mean
from dpbench.analysis.fields.levels import SWEEP_FIELDS
from dpbench.analysis.losses.learning import learning
from dpbench.analysis.precision import two_modes
from dpbench.analysis.resources import (
    UNBALANCED,
    counted_flops,
    memory_imbalance,
    peak_memory,
    utilisation,
)
from dpbench.analysis.scaling import Speed, with_scaling
from dpbench.analysis.steps import StepSummary, step_notes, step_statistics, summarize_steps
from dpbench.codec import differing_fields
from dpbench.records.environment import Environment, comparable
from dpbench.records.trial import Status, TrialRecord
from dpbench.specs import TrialSpec


def summarize(
    records: Sequence[TrialRecord],
    *,
    environments: Mapping[str, Environment] | None = None,
    target_loss: float | None = None,
) -> tuple[ConfigurationSummary, ...]:
    """One row per configuration, sorted by implementation, backend, group size, batch size.

    `environments` describe the GPUs, for the utilisation of their peaks; with `target_loss` rows
    have the time until the loss stays below it.
    """
    counts = Counter(record.trial.configuration for record in records)
    final = by_configuration(records)
    usable = {spec: usable_repetitions(group) for spec, group in final.items()}
    speeds = {spec: Speed.of(group) for spec, group in usable.items() if group}
    throughputs = {
        spec: speed.throughput.estimate(f"{final[spec][-1].item}/s")
        for spec, speed in speeds.items()
    }
    steps = _step_summaries(usable)
    learnt = learning(usable, throughputs, target_loss, _diverged(final))
    flops = counted_flops(records)
    rows = []
    for spec, group in final.items():
        row = _plain_row(spec, group)
        if spec in speeds:
            speed = throughputs[spec]
            values, notes = learnt[spec]
            row = replace(row, throughput=speed, steps=steps[spec], **values)
            row = with_note(_with_metrics(row, usable[spec]), *notes)
            row = with_note(row, *step_notes(row.label, steps[spec], speed))
            machines = [(environments or {}).get(i) for i in usable[spec][-1].environment_ids]
            row = _with_utilisation(row, flops.get(spec.workload), machines)
        run_again = counts[spec] - len(group)
        row = with_note(row, *_group_notes(row.label, run_again, group, usable[spec]))
        rows.append(with_scaling(row, spec, speeds))
    return with_seed_spread(in_order(_mark_look_alikes(rows)))


def _diverged(final: Mapping[TrialSpec, Sequence[TrialRecord]]) -> dict[TrialSpec, int]:
    """Number of repetitions that never reach a loss, however long they run."""
    return {
        spec: sum(effective_status(record) is Status.DIVERGED for record in group)
        for spec, group in final.items()
    }


def _step_summaries(
    usable: Mapping[TrialSpec, Sequence[TrialRecord]],
) -> dict[TrialSpec, StepSummary]:
    """Summaries of all windows of the sweep at once: one by one they would take longer than reading
    them."""
    windows = {spec: [throughput.step_seconds(r) for r in usable[spec]] for spec in usable}
    each = iter(
        step_statistics(
            list(chain.from_iterable(windows.values())),
            [spec.warmup_steps for spec, group in windows.items() for _ in group],
        )
    )
    return {
        spec: summarize_steps(group, list(islice(each, len(group))))
        for spec, group in windows.items()
        if group
    }


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
        timed_steps=spec.timed_steps if spec.precision is None else None,
        configuration=spec,
    )


def _with_metrics(row: ConfigurationSummary, usable: Sequence[TrialRecord]) -> ConfigurationSummary:
    memory = peak_memory(usable)
    estimated: dict[str, Any] = {
        field.key: field.over(usable) for field in SWEEP_FIELDS if field.over
    }
    return replace(
        row,
        timed_steps=row.timed_steps or _fewest_steps(usable),
        disturbed=sum(map(is_disturbed, usable)),
        peak_memory_bytes=memory.bytes if memory else None,
        peak_memory_kind=memory.kind if memory else None,
        **estimated,
    )


def _with_utilisation(
    row: ConfigurationSummary, flops_per_item: float | None, found: Sequence[Environment | None]
) -> ConfigurationSummary:
    """`found` are the environments of its hosts, None where one is not stored."""
    machines = [machine for machine in found if machine is not None]
    if len(machines) < len(found) or row.throughput is None or row.configuration is None:
        return row
    accelerated = any(machine.accelerators for machine in machines)
    if flops_per_item is None:
        missing = "no FLOP/s and MFU: no trial of this workload counted its operations"
        return with_note(row, missing) if accelerated else row
    used = utilisation(flops_per_item, row.configuration, row.throughput, *machines)
    row = replace(row, flops_per_second=used.achieved, mfu=used.mfu)
    return with_note(row, used.note) if accelerated else row


def _fewest_steps(usable: Sequence[TrialRecord]) -> int:
    """Fewest timed steps, of windows that ended when they were precise enough."""
    return min(len(rank.timed.step_seconds) for record in usable for rank in record.ranks)


def _group_notes(
    label: str,
    run_again: int,
    final: Sequence[TrialRecord],
    usable: Sequence[TrialRecord],
) -> list[str]:
    notes = []
    if run_again:
        trials = units.counted(run_again, "trial")
        notes.append(f"{label}: {trials} run again; the last record counts")
    again = Counter(r.tried_again_after for r in final if r.tried_again_after)
    for reason, count in again.items():
        trials = units.counted(count, "trial")
        notes.append(f"{label}: {trials} tried again, as the first try was ended: {reason}")
    environments = sorted({"+".join(map(comparable, r.environment_ids)) for r in usable})
    if len(environments) > 1:
        notes.append(
            f"{label}: its repetitions come from {len(environments)} environments "
            f"({', '.join(environments)}); their spread is not only noise"
        )
    proofs = {record.verification for record in usable if record.verification is not None}
    if any(proof.dtype == "float32" for proof in proofs):
        tolerance = max(proof.tolerance for proof in proofs)
        notes.append(
            f"{label}: gradients were compared with one process in float32 (tolerance "
            f"{tolerance:g}), as the model is too large for float64"
        )
    completed = [record for record in final if effective_status(record) is Status.COMPLETED]
    if empty := sum(not throughput.is_measured(record) for record in completed):
        notes.append(
            f"{label}: {units.counted(empty, 'completed repetition')} without a timed window, "
            "left out of the speed"
        )
    if modes := two_modes([throughput.throughput(record) for record in usable]):
        slower, faster = (f"{speed:,.4g}" for speed in modes)
        notes.append(
            f"{label}: its runs fall into two groups, about {slower} and {faster} "
            f"{usable[0].item}/s: the mean is of neither, and its interval may not hold; more "
            "repetitions tell how often each occurs"
        )
    imbalance = memory_imbalance(usable)
    if imbalance is not None and imbalance > UNBALANCED:
        notes.append(f"{label}: one rank holds {imbalance:.2f} × the mean peak memory of the ranks")
    return notes


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
