"""A speed that somebody else measured, and the rows of a table of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dpbench.analysis.configuration import ConfigurationSummary, in_order, with_note
from dpbench.analysis.estimate import LogMean
from dpbench.analysis.scaling import BASELINE, Kind, efficiency, speedup
from dpbench.records import Status


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedSpeed:
    """One configuration, as far as its source tells; None where it does not."""

    implementation: str
    backend: str | None
    group_size: int
    batch_size: int | None
    item: str
    speed: LogMean
    """Of all replicas, items per second; of kind "time", seconds for a fixed amount of work."""
    kind: Kind = "throughput"
    source: str | None = None
    """Who measured, of what, how; shown below the table."""
    notes: tuple[str, ...] = ()
    claims: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """What tells configurations apart."""
        return (self.implementation, self.backend, self.group_size, self.batch_size)


def summaries(speeds: Iterable[PublishedSpeed]) -> tuple[ConfigurationSummary, ...]:
    """One row each, with its speedup over group size 1 of the same series, in table order."""
    speeds = _with_one_source(list(speeds))
    ones = {one.key: one for one in speeds if one.group_size == 1}
    return in_order(_with_scaling(one, ones.get(replace(one, group_size=1).key)) for one in speeds)


def _with_scaling(one: PublishedSpeed, base: PublishedSpeed | None) -> ConfigurationSummary:
    row = row_of(one)
    if base is None:
        return with_note(row, f"{row.label}: no speedup, no row at group size 1")
    gain = BASELINE if one is base else speedup(base.speed, one.speed, kind=one.kind)
    return replace(row, speedup=gain, efficiency=efficiency(gain, one.group_size))


def row_of(one: PublishedSpeed) -> ConfigurationSummary:
    """Without its speedup."""
    timed = one.kind == "time"
    known = one.batch_size is not None and not timed
    row = ConfigurationSummary(
        implementation=one.implementation,
        backend=one.backend,
        group_size=one.group_size,
        batch_size=one.batch_size,
        # Of times it is not said whether the batch was per replica.
        global_batch_size=(one.batch_size or 0) * one.group_size if known else None,
        item=one.item,
        status=Status.COMPLETED,
        throughput=None if timed else one.speed.estimate(f"{one.item}/s"),
        duration=one.speed.estimate("s") if timed else None,
        repetitions=one.speed.sample_size if one.speed.basis == "repetitions" else 1,
        claims=one.claims,
    )
    source = () if one.source is None else (f"{row.label}: source: {one.source}",)
    return with_note(row, *source, *one.notes)


def _with_one_source(speeds: list[PublishedSpeed]) -> list[PublishedSpeed]:
    """Where all have the same, it need not name them."""
    sources = {one.source for one in speeds}
    if len(sources) != 1 or None in sources:
        return speeds
    return [
        replace(one, source=None, notes=(f"source: {one.source}", *one.notes)) for one in speeds
    ]
