"""Records to rows: groups repetitions and computes every metric, with notes on what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dpbench import units
from dpbench.analysis import throughput
from dpbench.analysis.configuration import (
    ConfigurationSummary,
    by_configuration,
    completed,
    in_order,
    outcome,
    usable_repetitions,
    with_note,
)
from dpbench.analysis.diagnosis.hints import is_disturbed
from dpbench.analysis.estimate import Estimate, LogMean
from dpbench.analysis.losses.learning import learning
from dpbench.analysis.metrics import SUMMARIZED
from dpbench.analysis.resources import (
    UNBALANCED,
    counted_flops,
    memory_imbalance,
    utilization,
)
from dpbench.analysis.scaling import Speed, reference_of, with_scaling
from dpbench.analysis.steps import summarize_steps
from dpbench.records.environment import Environment
from dpbench.records.trial import TrialRecord
from dpbench.specs import Labels, TrialSpec


def summarize(
    records: Sequence[TrialRecord],
    *,
    environments: Mapping[str, Environment] | None = None,
) -> tuple[ConfigurationSummary, ...]:
    """One row per configuration, sorted by implementation, backend, group size, batch size.

    `environments` describe the GPUs, for the utilization of their peaks.
    """
    counts = Counter(record.trial.configuration for record in records)
    final = by_configuration(records)
    usable = {spec: usable_repetitions(group) for spec, group in final.items()}
    speeds = {spec: Speed.of(group) for spec, group in usable.items() if group}
    reference = reference_of(speeds)
    flops = counted_flops(records)
    labels = Labels.among(final)
    rows = []
    for spec, group in final.items():
        row, notes = _row(spec, group, usable[spec], labels), []
        if run_again := counts[spec] - len(group):
            notes.append(f"{units.counted(run_again, 'trial')} run again; the last record counts")
        if row.throughput is not None:
            learned, of_losses = learning(usable[spec], row.throughput)
            machines = [(environments or {}).get(i) for i in usable[spec][-1].environment_ids]
            used, of_peak = _utilized(spec, row.throughput, flops.get(spec.workload), machines)
            row = replace(row, measured={**row.measured, **learned, **used})
            row = with_note(row, *of_peak)
            notes += [*of_losses, *_notes(group, usable[spec])]
        else:
            notes += _notes(group, [])
        row = with_note(row, *(f"{row.label}: {note}" for note in notes))
        rows.append(with_scaling(row, spec, speeds, reference(spec)))
    return in_order(rows)


def _row(
    spec: TrialSpec,
    group: Sequence[TrialRecord],
    usable: Sequence[TrialRecord],
    labels: Labels,
) -> ConfigurationSummary:
    end, item = outcome(group), group[-1].item
    row = ConfigurationSummary(
        implementation=spec.implementation,
        implementation_label=labels.implementation(spec),
        backend=spec.backend,
        group_size=spec.group_size,
        batch_size=spec.batch_size or None,
        global_batch_size=spec.global_batch_size or None,
        item=item,
        status=end.status,
        reason=end.reason,
        verified=end.verified,
        repetitions=len(completed(group)),
        timed_steps=spec.fixed_steps,
        configuration=spec,
        work=labels.work(spec),
        label_within_work=labels.within_work.implementation(spec),
    )
    if not usable:
        return row
    fewest = min(len(rank.timed.step_seconds) for record in usable for rank in record.ranks)
    return replace(
        row,
        throughput=LogMean.of_runs(list(map(throughput.throughput, usable))).estimate(f"{item}/s"),
        measured={metric.key: metric.over(usable) for metric in SUMMARIZED},
        steps=summarize_steps([throughput.step_seconds(record) for record in usable]),
        timed_steps=row.timed_steps or fewest,
        disturbed=sum(map(is_disturbed, usable)),
    )


def _utilized(
    spec: TrialSpec,
    speed: Estimate,
    flops_per_item: float | None,
    found: Sequence[Environment | None],
) -> tuple[dict[str, Any], list[str]]:
    """The MFU, and a note on its source where there are accelerators.

    `found` are the environments of its hosts, None where one is not stored.
    """
    machines = [machine for machine in found if machine is not None]
    if len(machines) < len(found):
        return {}, []
    accelerated = any(machine.accelerators for machine in machines)
    if flops_per_item is None:
        missing = "no MFU: no trial of this workload counted its operations"
        return {}, [missing] if accelerated else []
    achieved = speed.scaled(flops_per_item, unit="FLOP/s")
    mfu, note = utilization(achieved, spec, *machines)
    return {"mfu": mfu}, [note] if accelerated else []


def _notes(final: Sequence[TrialRecord], usable: Sequence[TrialRecord]) -> Iterator[str]:
    """Remarks on the repetitions of one configuration."""
    for reason, count in Counter(r.tried_again_after for r in final if r.tried_again_after).items():
        yield f"{units.counted(count, 'trial')} tried again, as the first try was ended: {reason}"
    proofs = {record.verification for record in usable if record.verification is not None}
    if any(proof.dtype == "float32" for proof in proofs):
        tolerance = max(proof.tolerance for proof in proofs)
        yield (
            f"gradients were compared with one process in float32 (tolerance {tolerance:g}), as "
            "the model is too large for float64"
        )
    imbalance = memory_imbalance(usable)
    if imbalance is not None and imbalance > UNBALANCED:
        yield f"one rank holds {imbalance:.2f} × the mean peak memory of the ranks"
