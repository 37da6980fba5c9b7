"""The assumptions of a projection, in plain sentences with their numbers."""

from __future__ import annotations

from collections.abc import Iterable

from dpbench import units
from dpbench.analysis.laws.band import CONFIDENCE, published_misspecification
from dpbench.analysis.projection.series import ONE_HOST, Series
from dpbench.analysis.projection.spread import EXACT
from dpbench.analysis.projection.step_model import NOISY_STEPS
from dpbench.analysis.simulation.buckets import caps_bytes
from dpbench.analysis.simulation.stragglers import StragglerNoise, rare_delay


def assumptions(series: Series, largest: int, machine: str) -> tuple[str, ...]:
    """Assumptions for one series; `largest` is the largest requested group size, `machine` the one
    that computed."""
    return (
        _compute(series, machine),
        _buckets(series),
        *_buffers(series),
        *series.network.assumptions,
        *_sharing(series),
        *_without_interval(series),
        "no replica fails or is replaced, no checkpoint is written, and the input pipeline keeps "
        "up as it did for one replica",
        *series.inputs.notes,
        *_unseen(series.inputs.noise, largest),
    )


def band_meaning() -> str:
    """Meaning of the ends of a simulated number's interval."""
    law = published_misspecification().beyond
    return (
        "intervals of measured numbers are 95 % over repetitions, those of simulated ones a "
        f"{units.fixed_percent(CONFIDENCE)} band: computing, communication, contention and the "
        "deviation of stragglers each moved to both ends of its own interval (means over "
        f"{NOISY_STEPS:,} noisy steps); how far the simulation of the nearest measured group was "
        f"off; and the error of a law beyond the data, which makes a step exp({law.low:g} r) to "
        f"exp({law.high:g} r) times as long, r² the doublings beyond the largest measured group "
        f"size; {law.hold_outs} hold-outs of published fits showed that error, and that "
        "simulations have it too is assumed; what collectives and computing cost each other, and "
        "filling buckets, count as measured, without an interval"
    )


def _compute(series: Series, machine: str) -> str:
    inputs = series.inputs
    steps = inputs.traces[0].step_seconds
    counted = f"{units.counted(len(steps), 'step')} × {len(inputs.traces)}"
    return (
        f"computing is as traced with {inputs.trace_source} on {machine} ({counted}), times "
        f"{series.anchor:.3g} to be the mean step of its timed windows"
    )


def _buckets(series: Series) -> str:
    cap, first = caps_bytes(series.cap_mb)
    sizes = [bucket.nbytes for bucket in series.model.buckets]
    first_words = "" if first is None else f", the first of {units.bytes_binary(first)}"
    largest = series.network.largest_bytes
    beyond = (
        f"; beyond the largest message measured, {units.bytes_binary(largest)}, the bandwidth stays"
        if largest is not None and max(sizes) > largest
        else ""
    )
    return (
        f"gradients of {units.bytes_binary(sum(sizes))} travel in "
        f"{units.counted(len(sizes), 'bucket')} of up to {units.bytes_binary(cap)}{first_words}"
        f"{beyond}"
    )


def _sharing(series: Series) -> Iterable[str]:
    model = series.model
    nodes = model.replicas_per_node
    place = "every machine holds as many replicas as the one that was measured"
    if series.trial.backend in ONE_HOST:
        place = "all replicas are on one machine with as many cores as they take"
    if nodes == 1:
        yield "every node has 1 replica, which computes as one alone on the machine traced"
        return
    if nodes is not None:
        place = f"every node has {nodes} replicas"
    if not model.contention:
        yield f"{place}, which do not slow each other's computing down: no `independent` rows tell"
        return
    listed = ", ".join(f"{n} take {f:.3g} ×" for n, f in sorted(model.contention.items()))
    yield (
        f"{place}; they slow each other's computing down as `independent` copies did ({listed} as "
        "long as one), more of them as the most measured"
    )


def _buffers(series: Series) -> Iterable[str]:
    if size := series.model.trace.buffer_bytes:
        yield (
            f"at the start of a step buffers of {units.bytes_binary(size)} are sent; "
            f"{series.network.broadcast_assumption}"
        )


def _without_interval(series: Series) -> Iterable[str]:
    spread, noisy = series.spread, series.inputs.noise is not None
    parts = (
        ("computing", spread.compute, True),
        ("communication", spread.communication, series.network.uncertainty is None),
        ("contention", spread.contention, bool(series.model.contention)),
        ("stragglers", spread.noise, noisy),
    )
    if missing := [name for name, ends, used in parts if used and ends == EXACT]:
        yield f"nothing tells the error of {', '.join(missing)}: the band leaves it out"


def _unseen(noise: StragglerNoise | None, largest: int) -> Iterable[str]:
    """Assumptions that the notes of the inputs cannot state, as they do not know the number of
    replicas."""
    if noise is not None and noise.rank_steps:
        share = rare_delay(1 / noise.rank_steps, 1.0, largest)
        yield (
            f"events rarer than 1 in {noise.rank_steps:,} rank-steps were not seen; one that rare "
            f"would strike {units.percent(share)} of the steps of {largest:,} replicas"
        )
