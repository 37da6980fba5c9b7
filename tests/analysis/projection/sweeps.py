"""Sweeps and curves whose numbers are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dpbench.analysis.projection.curve import ScalingCurve, scaling_curves
from dpbench.analysis.projection.network import Link, Topology
from dpbench.analysis.rows import Row, summarize
from dpbench.records.trial import GradientTrace, TrialRecord
from dpbench.shipped import RESULTS
from tests.analysis.builders import varied, weak_sweep

PUBLISHED = RESULTS / "published"
GRADIENTS = 8
GRADIENT_BYTES = 2**20


def gradient_trace(step_seconds: float = 0.01, **changes: Any) -> GradientTrace:
    """Two steps with eight gradients of 1 MiB, the last layer's first, evenly over the backward
    pass, which is the middle half of a step."""
    shares = [0.25 + (i + 1) / GRADIENTS / 2 for i in range(GRADIENTS)]
    values: dict[str, Any] = {
        "parameters": tuple(f"layer{i}" for i in range(GRADIENTS)),
        "gradient_bytes": (GRADIENT_BYTES,) * GRADIENTS,
        "ready_seconds": (tuple(step_seconds * share for share in reversed(shares)),) * 2,
        "backward_end_seconds": (step_seconds * 0.75,) * 2,
        "step_seconds": (step_seconds,) * 2,
    }
    return GradientTrace(**{**values, **changes})


def swept(batch_sizes: Sequence[int] = (32,), **changes: Any) -> list[TrialRecord]:
    """Three repetitions of `weak_sweep` at each batch size, with traces at group size 1.

    A step of ddp takes 11 ms alone and 20 ms with two replicas, 13 and 14 ms without
    synchronization; it takes as long with any batch.
    """
    found = []
    for batch_size in batch_sizes:
        for record in (one for repetition in range(3) for one in weak_sweep(repetition)):
            samples = batch_size * record.configuration.steps
            ranks = [
                replace(r, windows={**r.windows, "timed": replace(r.timed, samples=samples)})
                for r in record.ranks
            ]
            if record.configuration.group_size == 1:
                ranks[0] = replace(ranks[0], gradient_trace=gradient_trace(**changes))
            settings = varied(record.configuration, batch_size=batch_size)
            found.append(replace(record, configuration=settings, ranks=tuple(ranks)))
    return found


def ddp_curves(records: Sequence[TrialRecord]) -> list[ScalingCurve]:
    """The curves of ddp on gloo in the sweep, one for each batch size."""
    return scaling_curves(summarize(records), lambda row: True)[0]


def curve(seconds: Callable[[int], float], sizes: Sequence[int]) -> ScalingCurve:
    """A curve of single values with these step times, and one item in a replica's step."""
    rows = (
        Row(
            implementation="ddp",
            backend="gloo",
            group_size=n,
            batch_size=1,
            implementation_label="ddp",
            item="images",
            throughputs={0: n / seconds(n)},
        )
        for n in sizes
    )
    return ScalingCurve(rows=tuple(rows))


def topology(**changes: Any) -> Topology:
    """Nodes of four ranks, whose network has a tenth of their own bandwidth."""
    values = {
        "name": "a box",
        "ranks_per_node": 4,
        "intra": Link(latency_us=2, gigabytes_per_second=100),
        "inter": Link(latency_us=10, gigabytes_per_second=10),
        "source": "a test",
        "date": "2026-01-31",
    }
    return Topology(**{**values, **changes})
