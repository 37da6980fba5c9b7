"""Remarks of an expert on the rows of a sweep: on devices and shards, and on what the user's code
does that decides its speed, as its ranks recorded it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from dpbench import units
from dpbench.analysis.diagnosis.explanation import slowest_of
from dpbench.analysis.resources import gpu_names
from dpbench.analysis.rows import Row
from dpbench.records.environment import Environment
from dpbench.records.trial import INFINIBAND_UNUSED


def hints(rows: Sequence[Row], environments: Mapping[str, Environment]) -> tuple[str, ...]:
    """Remarks on what deserves a change or a second look, and nothing that was done already."""
    measured = [row for row in rows if row.records]
    return (
        *(hint for row in measured for hint in _unlike_gpus(row, environments)),
        *(hint for row in measured for hint in _gpus_and_network(row)),
        *_uneven_shards(measured),
    )


def _unlike_gpus(row: Row, environments: Mapping[str, Environment]) -> Iterator[str]:
    """Remark on GPUs of different models, with the slowest rank's share."""
    names = []
    for record in row.records:
        models = gpu_names(map(environments.get, record.environment_ids))
        names += [models[place] for place in record.trial.places if place in models]
    if len({*names}) < 2:
        return
    slowest, which = slowest_of(row.records), "slowest"
    if slowest is not None:
        share = units.percent(slowest.behind.value)
        which = f"slowest, rank {slowest.rank} on {slowest.device}, for {share} of its step"
    listed = ", ".join(dict.fromkeys(names))
    yield f"{row.label}: its GPUs differ ({listed}); all wait for the {which}"


def _gpus_and_network(row: Row) -> Iterator[str]:
    """Remarks on other processes on its GPUs, and on sockets where there is InfiniBand."""
    if row.trial is None:
        return
    places, one_process = row.trial.places, row.trial.process_count == 1
    ranks = [rank for record in row.records for rank in record.ranks]
    shared = {
        row.trial.place_of(rank.rank): None
        for rank in ranks
        for state in rank.timed.gpu
        if state.processes > (1 if one_process else places.count(places[rank.rank]))
    }
    if shared:
        yield (f"{row.label}: other processes use {', '.join(shared)}; stop them and measure again")
    if any(INFINIBAND_UNUSED in rank.transports for rank in ranks):
        yield (
            f"{row.label}: NCCL sends through sockets, although there is InfiniBand; look at "
            "NCCL_IB_DISABLE, NCCL_IB_HCA and whether libibverbs is installed"
        )


def _uneven_shards(rows: Sequence[Row]) -> Iterator[str]:
    """Remark on replicas that take different numbers of samples."""
    for sizes in dict.fromkeys(row.trial.replica_batch_sizes for row in rows if row.trial):
        counts = sorted(Counter(sizes).items(), reverse=True)
        if len(counts) > 1:
            shares = " and ".join(f"{n} take{'s' if n == 1 else ''} {size}" for size, n in counts)
            yield (
                f"of {len(sizes)} replicas, {shares} samples of a global batch of {sum(sizes)}: "
                "gradients are weighted by samples, but all replicas wait for the largest shard "
                f"({max(sizes) * len(sizes) / sum(sizes):.2f} × the mean)"
            )
