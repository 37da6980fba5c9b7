"""What an item costs in energy."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from dpbench.analysis import throughput
from dpbench.analysis.estimate import Estimate, LogMean
from dpbench.records import RankMeasurement, TrialRecord


def joules_per_item(records: Sequence[TrialRecord]) -> Estimate | None:
    """Energy of the GPUs over the timed window ÷ items of all replicas, over repetitions.

    None unless every rank of some repetition told its energy. Host and network are not in it.
    """
    values = [value for record in records if (value := _joules_per_item(record)) is not None]
    if not values:
        return None
    return LogMean.of_runs(values).estimate(f"J/{records[0].item.removesuffix('s')}")


def _joules_per_item(record: TrialRecord) -> float | None:
    items = throughput.items(record)
    joules = [_of_device(ranks) for ranks in _ranks_by_device(record)]
    known = [value for value in joules if value is not None]
    if not known or len(known) < len(joules) or items == 0 or sum(known) <= 0:
        return None
    return sum(known) / items


def _ranks_by_device(record: TrialRecord) -> list[list[RankMeasurement]]:
    groups: dict[str, list[RankMeasurement]] = {}
    for rank in record.ranks:
        groups.setdefault(rank.device, []).append(rank)
    return list(groups.values())


def _of_device(ranks: Sequence[RankMeasurement]) -> float | None:
    """Ranks that share a GPU each read the whole of it, so they count once: their mean."""
    joules = [rank.energy_joules for rank in ranks if rank.energy_joules is not None]
    return fmean(joules) if len(joules) == len(ranks) else None
