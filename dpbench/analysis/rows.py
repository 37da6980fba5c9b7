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
from dpbench.analysis.scaling import (
    OWN,
    UNITY,
    efficiency_of,
    environments_of,
    reference_of,
    speedup_of,
)
from dpbench.analysis.steps import warm_up
from dpbench.analysis.throughput import step_seconds
from dpbench.records.environment import Environment
from dpbench.records.trial import Status, TrialRecord
from dpbench.specs import Labels, TrialSpec, plain_label
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
        own = usable[spec]
        values: dict[str, Any] = {
            "global_batch_size": spec.global_batch_size or None,
            "timed_steps": spec.fixed_steps,
        }
        notes: list[str] = []
        remarks: list[str] = []
        reference = ""
        if run_again := counts[spec] - len(group):
            notes.append(f"{units.counted(run_again, 'trial')} run again; the last record counts")
        if own:
            values |= _values(own)
            machines = [(environments or {}).get(name) for name in own[-1].environment_ids]
            speed = values["images_per_second"]
            counted = flops.get(spec.workload)
            values["mfu"], remarks = utilization(speed, counted, spec, machines)
            notes += loss_notes(own)
        notes += _notes(group, own)
        if own:
            gains, reference, missing = _scaling(spec, reference_to(spec), usable)
            values |= gains
            notes += missing
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
                reference=reference,
                trial=spec,
                labels=labels,
                records=own,
                warm_up=warm_up([step_seconds(record) for record in own]) if own else None,
                notes=tuple(notes),
                remarks=tuple(remarks),
            )
        )
    return in_order(rows)


def _values(usable: Sequence[TrialRecord]) -> dict[str, Any]:
    """What the usable repetitions of a configuration say without other ones."""
    values: dict[str, Any] = {
        metric.key: metric.combined(usable) for metric in DECLARED if metric.scale
    }
    speed: Estimate = values["images_per_second"]
    fewest = min(len(rank.timed.step_seconds) for record in usable for rank in record.ranks)
    return {
        **values,
        "loss_slope_per_second": loss_slope_per_second(usable, speed),
        "step_seconds_p50": percentile(50, *usable),
        "step_seconds_p95": percentile(95, *usable),
        "timed_steps": usable[0].trial.fixed_steps or fewest,
    }


def _scaling(
    spec: TrialSpec, reference: TrialSpec, usable: Mapping[TrialSpec, Sequence[TrialRecord]]
) -> tuple[dict[str, Estimate | None], str, list[str]]:
    """Speedups and efficiency against `reference`, its name in words, and what is wrong with it."""

    def against(baseline: TrialSpec) -> Estimate | None:
        if baseline == spec:
            return UNITY
        base = usable.get(baseline)
        return speedup_of(usable[spec], base) if base else None

    speedup, relative = against(reference), against(spec.of_one_replica)
    if speedup is None:
        missing = f"no speedup, because {plain_label(reference)} has no completed run"
        return {"speedup_relative": relative}, "", [missing]
    gains = {
        "speedup": speedup,
        "efficiency": efficiency_of(speedup, spec.group_size),
        "speedup_relative": relative,
    }
    base = environments_of(usable[reference])
    notes = []
    if base != environments_of(usable[spec]):
        names = ", ".join(sorted(base))
        notes = [f"compared with {plain_label(reference)} from another environment ({names})"]
    return gains, SINGLE if reference.implementation == SINGLE else OWN, notes


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
