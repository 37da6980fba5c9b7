"""Steps on networks that are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpbench.analysis.communication.collective_cost import (
    CollectiveCost,
    measured_cost,
    network_cost,
)
from dpbench.analysis.communication.curves import curves
from dpbench.analysis.projection.series import Series, series_of
from dpbench.analysis.projection.simulation import Bucket
from dpbench.analysis.projection.step_model import StepModel
from dpbench.analysis.summary import summarize
from dpbench.records.trial import TrialRecord
from dpbench.units import MEBI
from tests.analysis.communication.collective_records import (
    affine,
    collective_record,
    collective_spec,
    topology,
)
from tests.analysis.projection.traces import assumed_noise, step, traced_sweep

RESNET_BUCKETS = (MEBI, 25 * MEBI, 25 * MEBI, 25 * MEBI, 43 * MEBI // 2)
RESNET_READY = (0.10, 0.30, 0.45, 0.65, 1.0)
"""Of the backward pass."""


@dataclass(frozen=True)
class StandIn:
    """A network whose all-reduces take what a function of bytes and ranks says."""

    cost: Callable[[float, int], float]

    def seconds(self, nbytes: float, group_size: int) -> float:
        return 0.0 if group_size == 1 else self.cost(nbytes, group_size)

    def lost_share(self, nbytes: float) -> float:
        return 0.0

    def stretch(self, nbytes: float) -> float:
        return 1.0

    def fill_seconds(self, nbytes: float) -> float:
        return 0.1

    def broadcast_seconds(self, nbytes: float, group_size: int) -> float:
        return 7 * self.seconds(nbytes, group_size)


def resnet50(step_seconds: float, bucket_seconds: dict[int, float], cv: float) -> StepModel:
    """A third forward, two thirds backward; `bucket_seconds` of 25 MiB by group size."""
    forward = step_seconds / 3
    ready = [forward + share * (step_seconds - forward) for share in RESNET_READY]
    buckets = zip(ready, RESNET_BUCKETS, strict=True)
    return StepModel(
        trace=step(ready, RESNET_BUCKETS, forward=forward),
        buckets=tuple(Bucket(ready_seconds=r, nbytes=nbytes) for r, nbytes in buckets),
        network=StandIn(lambda nbytes, n: bucket_seconds[n] * nbytes / (25 * MEBI)),
        noise=assumed_noise(cv) if cv else None,
    )


GLOO = affine(1e-4, 2e9)


def measured_network(_: str = "gloo") -> CollectiveCost:
    """All-reduces of two ranks at 100 µs and 2 GB/s."""
    return measured_cost(curves([collective_record(collective_spec(), GLOO)]), "gloo")


def given_network(_: str = "gloo") -> CollectiveCost:
    return network_cost(topology())


def swept(batch_sizes: Sequence[int] = (32,)) -> list[TrialRecord]:
    """Three repetitions of `traced_sweep` at each batch size; steps take as long with any."""
    return [
        _with_batch(record, batch_size)
        for batch_size in batch_sizes
        for repetition in range(3)
        for record in traced_sweep(repetition)
    ]


def _with_batch(record: TrialRecord, batch_size: int) -> TrialRecord:
    samples = batch_size * record.trial.timed_steps
    ranks = tuple(
        replace(rank, timed=replace(rank.timed, samples=samples)) for rank in record.ranks
    )
    return replace(record, trial=replace(record.trial, batch_size=batch_size), ranks=ranks)


def series(**changes: Any) -> Series:
    """ddp on gloo at batch 32: one replica takes 11 ms, two take 20, which were measured."""
    records = swept()
    values = {"network_of": measured_network, **changes}
    found, _ = series_of(records, summarize(records), **values)
    return found[0]
