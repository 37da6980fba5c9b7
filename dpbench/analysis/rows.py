"""Records to rows: groups repetitions and computes every metric, with notes on what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpbench import units
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.losses import loss_notes, loss_slope_per_second
from dpbench.analysis.metrics import DECLARED, percentile
from dpbench.analysis.repetitions import by_configuration, outcome, usable_repetitions
from dpbench.analysis.resources import (
    UNBALANCED,
    counted_flops,
    memory_imbalance,
    utilization,
)
from dpbench.analysis.row import Row, in_order
from dpbench.analysis.scaling import OWN, UNITY, efficiency_of, reference_of, speedup_of
from dpbench.records.environment import Environment
from dpbench.records.trial import Status, TrialRecord
from dpbench.specs import Labels, plain_label
from dpbench.specs.traits import SINGLE


def summarize(
    records: Sequence[TrialRecord], *, environments: Mapping[str, Environment] | None = None
) -> tuple[Row, ...]:
    """One row per configuration, sorted by implementation, backend, group size, batch size.

    `environments` describe the GPUs, for the utilization of their peaks.
    """
    counts = Counter(record.trial.configuration for record in records)
    final = by_configuration(records)
    usable = {spec: usable_repetitions(group) for spec, group in final.items()}
    reference_to = reference_of(spec for spec, found in usable.items() if found)
    flops = counted_flops(records)
    labels = Labels.among(final)
    rows = []
    for spec, group in final.items():
        own, reference = usable[spec], reference_to(spec)
        values: dict[str, Any] = {}
        remarks: list[str] = []
        notes: list[str] = []
        if run_again := counts[spec] - len(group):
            notes.append(f"{units.counted(run_again, 'trial')} run again; the last record counts")
        if own:
            values = {metric.key: metric.combined(own) for metric in DECLARED if metric.scale}
            speed: Estimate = values["images_per_second"]
            machines = [(environments or {}).get(name) for name in own[-1].environment_ids]
            counted = flops.get(spec.workload)
            values["mfu"], remarks = utilization(speed, counted, spec, machines)
            values["loss_slope_per_second"] = loss_slope_per_second(own, speed)
            values |= {f"step_seconds_p{p}": percentile(p, *own) for p in (50, 95)}
            for key, base in (
                ("speedup", reference),
                ("speedup_relative", spec.of_one_replica),
            ):
                found = usable.get(base)
                values[key] = UNITY if base == spec else speedup_of(own, found) if found else None
            speedup = values["speedup"]
            values["efficiency"] = speedup and efficiency_of(speedup, spec.group_size)
            notes += loss_notes(own)
        notes += _notes(group, own)
        if own and values["speedup"] is None:
            notes.append(f"no speedup, because {plain_label(reference)} has no completed run")
        status, reason = outcome(group)
        is_compared = any(record.verification is not None for record in group) or None
        is_wrong = any(record.status is Status.WRONG_GRADIENTS for record in group)
        rows.append(
            Row(
                implementation=spec.implementation,
                backend=spec.backend,
                group_size=spec.group_size,
                batch_size=spec.batch_size or None,
                item=group[-1].item,
                status=status,
                reason=reason,
                verified=False if is_wrong else is_compared,
                values=values,
                repetitions=sum(record.status is Status.COMPLETED for record in group),
                reference=SINGLE if reference.implementation == SINGLE else OWN,
                trial=spec,
                labels=labels,
                records=own,
                notes=tuple(notes),
                remarks=tuple(remarks),
            )
        )
    return in_order(rows)


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
    imbalance = memory_imbalance(*usable)
    if imbalance is not None and imbalance > UNBALANCED:
        yield f"one rank holds {imbalance:.2f} × the mean peak memory of the ranks"
