"""Text and JSON of `dpbench buckets`: a table of bucket caps, and which one to take."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dpbench import units
from dpbench.analysis.laws.band import CONFIDENCE
from dpbench.analysis.projection.bucket_advice import WORTH, BucketAdvice, CapSummary
from dpbench.analysis.projection.simulation import StepTrace
from dpbench.report.answer import Answer, plain_estimate
from dpbench.report.numbers import percentage, time_text
from dpbench.report.prediction.answer import Brief, predicted_answer, summary_table
from dpbench.report.table import text_table
from dpbench.report.terminal import folded, write_table
from dpbench.specs.traits import DEFAULT_CAP_MB, DEFAULT_FIRST_CAP_MB
from dpbench.units import MEBI

SHARES = (0.25, 0.5, 0.75, 1.0)
"""Shares of the gradients' bytes whose time of readiness is shown."""


def answer(
    advice: Sequence[BucketAdvice],
    notes: Sequence[str] = (),
    *,
    premise: str | None = None,
    verbose: bool = True,
) -> Answer:
    """Gradients, a table of caps and the cap to take for each configuration; then notes. As
    data, a cap of null is the implementation's own."""
    return predicted_answer(
        map(_section, advice),
        reading=_common_notes(advice),
        assumptions=[(one.label, one.notes) for one in advice],
        data={"configurations": [_plain(one) for one in advice]},
        premise=premise,
        notes=notes,
        brief=None if verbose else _brief(advice),
    )


def _brief(advice: Sequence[BucketAdvice]) -> Brief:
    """The best cap of each configuration, and what to do where it is worth it."""
    rows = [
        [
            one.label,
            time_text(one.present.step_seconds),
            "the present one" if one.recommended is one.present else _cap(one.recommended.cap_mb),
            "" if one.recommended is one.present else percentage(one.recommended.gain),
            "yes" if cap_to_take(one) is not None else "no",
        ]
        for one in advice
    ]
    headers = ("Configuration", "Step", "Best bucket cap", "Saves", "Worth it")
    worth = [f"{one.label}\n{_verdict(one)}" for one in advice if cap_to_take(one) is not None]
    words = ("Configuration", "Best bucket cap", "Worth it")
    reading = (
        f"steps are simulated; a change is worth it from {units.exact_percent(WORTH)} of a step on"
    )
    return Brief(blocks=[summary_table(rows, headers, words), *worth], reading=[reading])


def cap_to_take(advice: BucketAdvice) -> float | None:
    """MiB for bucket_cap_mb; None where a change is not worth it."""
    if not advice.is_worthwhile:
        return None
    return _argument(advice.recommended, advice.inputs.trace)


def _section(advice: BucketAdvice) -> str:
    caps = [advice.present, *advice.others]
    table = text_table(
        ("Bucket cap", "Buckets", "Largest", "Step", "Exposed\ncomm", "Saves", "n"),
        [_cells(cap, advice) for cap in caps],
        words=("Bucket cap",),
    )
    written = write_table(folded(table, ["Bucket cap"]))
    title = f"{advice.label}, on {advice.series.network.name} ({advice.kind})"
    lines = [title, *_profile(advice), "", *written.splitlines(), "", _verdict(advice)]
    return "\n".join(line.rstrip() for line in lines)


def _profile(advice: BucketAdvice) -> Iterable[str]:
    trace = advice.series.model.trace
    count = units.counted(len(trace.gradient_bytes), "gradient")
    steps = units.counted(trace.sample_size, "step")
    yield f"{count}, {units.bytes_binary(trace.total_bytes)}; {advice.inputs.trace_source}, {steps}"
    ready = ", ".join(
        f"{units.fixed_percent(share)} at {units.seconds(_ready_at(trace, share))}"
        for share in SHARES
    )
    yield (
        f"backward from {units.seconds(trace.forward_seconds)} "
        f"to {units.seconds(trace.backward_end_seconds)}, "
        f"the first gradient ready at {units.seconds(trace.ready_seconds[0])}"
    )
    yield f"of the bytes ready: {ready}"


def _ready_at(trace: StepTrace, share: float) -> float:
    """When so much of the bytes is ready."""
    so_far = np.cumsum(trace.gradient_bytes)
    return trace.ready_seconds[int(np.searchsorted(so_far, share * so_far[-1] - 0.5))]


def _cells(cap: CapSummary, advice: BucketAdvice) -> list[str]:
    return [
        _cap(cap.cap_mb),
        str(len(cap.buckets)),
        units.bytes_binary(max(bucket.nbytes for bucket in cap.buckets)),
        time_text(cap.step_seconds),
        time_text(cap.exposed_seconds),
        "present" if cap is advice.present else percentage(cap.gain),
        f"{cap.step_seconds.sample_size:,}",
    ]


def _cap(cap_mb: float | None) -> str:
    if cap_mb is None:
        return f"default: {DEFAULT_FIRST_CAP_MB:g}, then {DEFAULT_CAP_MB:g} MiB"
    return "one bucket" if math.isinf(cap_mb) else f"{cap_mb:g} MiB"


def _argument(cap: CapSummary, trace: StepTrace) -> float | None:
    """Value for bucket_cap_mb: for one bucket, the whole MiB that hold all gradients."""
    if cap.cap_mb is None or math.isfinite(cap.cap_mb):
        return cap.cap_mb
    return float(math.ceil(trace.total_bytes / MEBI))


def _verdict(advice: BucketAdvice) -> str:
    name, gain = _cap(advice.recommended.cap_mb), percentage(advice.recommended.gain)
    if (cap := cap_to_take(advice)) is not None:
        return (
            f"→ {name} saves {gain} of a step: dpbench sweep … --bucket-cap-mb {cap:g}, or\n"
            f"  DistributedDataParallel(module, bucket_cap_mb={cap:g})"
        )
    if not advice.others:
        return "→ no cap makes other buckets: there is nothing to choose"
    if advice.recommended is advice.present:
        return "→ no cap is better than the present one"
    would = f"{name} would save {gain} of a step"
    if advice.seen_error > advice.recommended.gain.value >= WORTH:
        return f"→ {would}, less than the simulation was off here:\n  measure it before it is taken"
    return f"→ no difference worth a change: {would}"


def _common_notes(advice: Sequence[BucketAdvice]) -> Iterable[str]:
    yield (
        "steps are simulated: gradients get ready as in the trace, and buckets are all-reduced one "
        "after the other while computing goes on; exposed communication is what that adds to a "
        f"step. A change is worth it from {units.exact_percent(WORTH)} of a step on"
    )
    for one in advice:
        if (measured := one.measured_step_seconds) is not None:
            simulated = one.present.step_seconds
            off = units.fixed_percent(simulated.value / measured.value - 1, signed=True)
            yield (
                f"{one.label}: measured {time_text(measured)} a step "
                f"(n = {measured.sample_size}), simulated {time_text(simulated)} with the "
                f"present buckets ({off})"
            )
    yield from _intervals(advice)


def _intervals(advice: Sequence[BucketAdvice]) -> Iterable[str]:
    sizes = sorted(
        {one.present.gain.sample_size for one in advice if one.present.gain.basis == "repetitions"}
    )
    if sizes:
        yield (
            f"intervals of simulated numbers are {units.fixed_percent(CONFIDENCE)} bands: the "
            f"traces of {units.span(sizes, 'repetition')} differ, and computing, communication, "
            "contention and stragglers are each moved to both ends of their interval"
        )
    if len(sizes) < len({one.present.gain.basis for one in advice}) or not sizes:
        yield (
            "of a single repetition the interval is over its traced steps, and says nothing of "
            "how runs differ; measure with --repetitions 3 or more"
        )


def _plain(advice: BucketAdvice) -> dict[str, Any]:
    trial, trace = advice.series.trial, advice.inputs.trace
    return {
        "implementation": trial.implementation_label,
        "backend": trial.backend,
        "group_size": advice.group_size,
        "batch_size": trial.batch_size,
        "kind": advice.kind,
        "trace": {
            "of": advice.inputs.trace_source,
            "steps": trace.sample_size,
            "overhead": plain_estimate(advice.inputs.tracing_overhead),
            "forward_seconds": trace.forward_seconds,
            "backward_seconds": trace.backward_seconds,
            "optimizer_seconds": trace.optimizer_seconds,
            "ready_seconds": list(trace.ready_seconds),
            "gradient_bytes": list(trace.gradient_bytes),
        },
        "measured_step_seconds": plain_estimate(advice.measured_step_seconds),
        "present": _plain_cap(advice.present, trace),
        "others": [_plain_cap(cap, trace) for cap in advice.others],
        "bucket_cap_mb": cap_to_take(advice),
        "notes": list(advice.notes),
    }


def _plain_cap(cap: CapSummary, trace: StepTrace) -> dict[str, Any]:
    return {
        "bucket_cap_mb": _argument(cap, trace),
        "bucket_bytes": [bucket.nbytes for bucket in cap.buckets],
        "bucket_ready_seconds": [bucket.ready_seconds for bucket in cap.buckets],
        "step_seconds": plain_estimate(cap.step_seconds),
        "exposed_communication_seconds": plain_estimate(cap.exposed_seconds),
        "share_saved": plain_estimate(cap.gain),
    }
