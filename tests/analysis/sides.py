"""Sides of a comparison by hand: throughputs in, a Side out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpbench.analysis.matching import Matched, Side, match
from dpbench.records import TrialRecord
from dpbench.specs import TrialSpec
from tests.analysis.builders import run, trial


def runs(spec: TrialSpec, throughputs: Sequence[float], **changes: Any) -> list[TrialRecord]:
    """A repetition for every throughput."""
    values = {f: getattr(spec, f) for f in spec.__dataclass_fields__ if f != "repetition"}
    return [
        run(TrialSpec(**values, repetition=repetition), throughput, **changes)
        for repetition, throughput in enumerate(throughputs)
    ]


def side(label: str, *groups: Sequence[TrialRecord], **changes: Any) -> Side:
    records = tuple(record for group in groups for record in group)
    return Side(**{"label": label, "records": records, "environments": {}, **changes})


def throughputs(
    baseline: Mapping[int, Sequence[float]], candidate: Mapping[int, Sequence[float]]
) -> Matched:
    """Two sweeps of ddp on one replica: {batch size: throughput of every repetition}."""
    return match(
        side("before", *(runs(trial(batch_size=b), speeds) for b, speeds in baseline.items())),
        side("after", *(runs(trial(batch_size=b), speeds) for b, speeds in candidate.items())),
    )
