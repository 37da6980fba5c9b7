"""Made-up trainings on the fabric: what their step is predicted to take, and what it takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from dpbench.analysis.projection.simulation import (
    Seconds,
    SimulatedStep,
    StepTrace,
    into_buckets,
    simulate,
    step_trace,
)
from tests.fabric.clocks import run_in_virtual_time
from tests.fabric.fabric import Layer, Model, Network, trace, train

Run = Callable[[Any], Any]
"""One of clocks'."""
MEBI = 1024**2
ONE_BUCKET_MB = 1000.0


def even(layers: int, *, forward_seconds: float = 0.01, backward_seconds: float = 0.02) -> Model:
    """Equal layers of 1 MiB of gradients each."""
    layer = Layer(
        forward_seconds=forward_seconds / layers,
        backward_seconds=backward_seconds / layers,
        gradient_bytes=MEBI,
    )
    return Model(layers=(layer,) * layers, optimizer_seconds=0.002)


def uneven() -> Model:
    """Slow layers with few parameters and quick ones with many: convolutions and a classifier."""
    convolutions = Layer(forward_seconds=0.003, backward_seconds=0.006, gradient_bytes=MEBI // 16)
    classifier = Layer(forward_seconds=0.001, backward_seconds=0.002, gradient_bytes=6 * MEBI)
    return Model(layers=(convolutions,) * 4 + (classifier,) * 2, optimizer_seconds=0.003)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    model: Model
    network: Network
    caps_mb: tuple[float, ...] = (1.0, 25.0)
    accumulation_steps: int = 1


def link(*, latency_seconds: float = 0.0002, mebibytes_per_second: float) -> Network:
    return Network(latency_seconds=latency_seconds, bytes_per_second=mebibytes_per_second * MEBI)


CASES = {
    "hidden behind computing": Case(
        model=even(10), network=link(mebibytes_per_second=2000), caps_mb=(2.0,)
    ),
    "bound by communication": Case(
        model=even(10), network=link(mebibytes_per_second=200), caps_mb=(2.0,)
    ),
    "bound by latency": Case(
        model=even(10),
        network=link(latency_seconds=0.004, mebibytes_per_second=math.inf),
        caps_mb=(1.0,),
    ),
    "one bucket": Case(
        model=even(10), network=link(mebibytes_per_second=500), caps_mb=(ONE_BUCKET_MB,)
    ),
    "20 buckets": Case(model=even(20), network=link(mebibytes_per_second=800), caps_mb=(1.0,)),
    "accumulation 4": Case(
        model=even(10, forward_seconds=0.005, backward_seconds=0.01),
        network=link(mebibytes_per_second=500),
        accumulation_steps=4,
    ),
    "a big classifier": Case(model=uneven(), network=link(mebibytes_per_second=400)),
}


def known_of(case: Case, steps: int, run: Run = run_in_virtual_time) -> StepTrace:
    """What one rank alone tells, as the simulation gets it."""
    return step_trace([run(trace(case.model, steps))])


def predicted(case: Case, known: StepTrace, *, slowdown: Seconds = 1.0) -> SimulatedStep:
    first, *others = case.caps_mb
    buckets = into_buckets(
        known, cap_bytes=(others or [first])[0] * MEBI, first_cap_bytes=first * MEBI
    )
    return simulate(
        known,
        buckets,
        case.network.seconds,
        accumulation_steps=case.accumulation_steps,
        slowdown=slowdown,
    )


def measured_seconds(case: Case, steps: int, run: Run = run_in_virtual_time) -> float:
    """The median step of two ranks."""
    work = train(
        case.model,
        case.network,
        steps=steps,
        caps_mb=case.caps_mb,
        accumulation_steps=case.accumulation_steps,
    )
    ranks: list[list[float]] = run(work)
    return median(seconds for rank in ranks for seconds in rank)


@dataclass(frozen=True, slots=True)
class Outcome:
    predicted_seconds: float
    measured_seconds: float

    @property
    def error(self) -> float:
        return self.predicted_seconds / self.measured_seconds - 1


def outcome(case: Case, steps: int, run: Run = run_in_virtual_time) -> Outcome:
    step = predicted(case, known_of(case, steps, run))
    return Outcome(float(step.step_seconds), measured_seconds(case, steps, run))
