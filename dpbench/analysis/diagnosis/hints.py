"""Remarks of an expert on these records, and notes on other load that disturbed them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dpbench import units
from dpbench.analysis.configuration import by_configuration
from dpbench.analysis.diagnosis.user_code import code_notes
from dpbench.analysis.resources import gpu_names
from dpbench.analysis.throughput import is_measured, rank_step_seconds, steps_without_sync
from dpbench.records.environment import Environment
from dpbench.records.trial import HostLoad, TrialRecord
from dpbench.specs import Labels, TrialSpec

BUSY = 0.1
"""Share of the usable cores from which others' work disturbs trials on the CPU."""
BUSY_BESIDE_GPUS = 0.5
"""Share for trials on GPUs, whose ranks need little of the cores."""
MANY = 0.1
"""Share of disturbed trials from which no figure of the sweep can be trusted."""
NCCL_GPUS = 4
"""Fewest GPUs for which gloo, which stages gradients through the host, is called the wrong
choice."""


def is_disturbed(record: TrialRecord) -> bool:
    """Whether others used so much of the cores that they affect the trial's times; False if that
    was not measured."""
    load = record.host_load
    if load is None or not record.ranks:
        return False
    limit = BUSY if record.trial.devices[0] == "cpu" else BUSY_BESIDE_GPUS
    return _share(load) >= limit


def is_untrustworthy(records: Sequence[TrialRecord]) -> bool:
    """Whether so many trials were disturbed that no figure of the sweep can be trusted."""
    looked_at = [record for record in records if record.host_load and record.ranks]
    return bool(looked_at) and sum(map(is_disturbed, looked_at)) >= MANY * len(looked_at)


def load_notes(records: Sequence[TrialRecord]) -> tuple[str, ...]:
    """Note on the load of others, the number of trials, and what follows; () on a quiet machine."""
    looked_at = [record for record in records if record.host_load and record.ranks]
    busy = [record for record in looked_at if is_disturbed(record)]
    if not busy:
        return ()
    loads = [record.host_load for record in busy if record.host_load]
    stolen, others = sum(load.stolen for load in loads), sum(load.during for load in loads)
    who = "other virtual machines" if stolen > others else "other processes"
    used = units.span(round(100 * min(1.0, _share(load))) for load in loads)
    cores = units.counted(max(load.cores for load in loads), "core")
    trials = f"{len(busy):,} of {units.counted(len(looked_at), 'trial')}"
    verdict = (
        "; free the machine and measure again, or trust only differences far larger than the "
        "intervals"
        if is_untrustworthy(records)
        else ": their intervals may be wide; add --repetitions"
    )
    return (f"{who} used {used} % of {cores} during {trials}{verdict}",)


def _share(load: HostLoad) -> float:
    return (load.during + load.stolen) / load.cores


def hints(
    records: Sequence[TrialRecord], environments: Mapping[str, Environment]
) -> tuple[str, ...]:
    """Remarks on what deserves a change or a second look, and nothing that was done already."""
    groups = by_configuration(
        record
        for record in records
        if is_measured(record) and len(record.ranks) == record.trial.process_count
    )
    labels = Labels.among(groups)
    return (
        *_try_nccl(groups, records, environments),
        *(
            f"{labels.configuration(spec)}: {found}"
            for spec, group in groups.items()
            for found in _unlike_gpus(spec, group, environments)
        ),
        *(
            _uneven_shards(sizes)
            for sizes in dict.fromkeys(s.replica_batch_sizes for s in groups)
            if len(set(sizes)) > 1
        ),
        *code_notes(records),
    )


def _try_nccl(
    groups: Mapping[TrialSpec, Sequence[TrialRecord]],
    records: Sequence[TrialRecord],
    environments: Mapping[str, Environment],
) -> Iterator[str]:
    """Remark on gloo with many GPUs, unless nccl was tried, with or without success."""
    with_cuda = {name for name, environment in environments.items() if environment.cuda is not None}
    gpus = [
        len(set(spec.places))
        for spec, group in groups.items()
        if spec.backend == "gloo"
        and spec.devices[0] != "cpu"
        and any(record.environment_id in with_cuda for record in group)
    ]
    most = max(gpus, default=0)
    if most >= NCCL_GPUS and not any(record.trial.backend == "nccl" for record in records):
        yield (
            f"gloo stages the gradients of {most} GPUs through the host; nccl sends them from GPU "
            "to GPU: add --backends gloo,nccl"
        )


def _unlike_gpus(
    spec: TrialSpec, group: Sequence[TrialRecord], environments: Mapping[str, Environment]
) -> Iterator[str]:
    """Remark on GPUs of different models, with the slowest rank's share: medians over
    repetitions."""
    names = []
    for record in group:
        models = gpu_names(map(environments.get, record.environment_ids))
        names += [models[place] for place in record.trial.places if place in models]
    if len({*names}) < 2:
        return
    text = f"its GPUs differ ({', '.join(dict.fromkeys(names))}); all wait for the "
    if spec.process_count == 1:
        yield f"{text}slowest"
        return
    steps = np.array([rank_step_seconds(record) for record in group])
    ratios = np.median(steps / steps.mean(axis=1, keepdims=True), axis=0)
    slowest = int(ratios.argmax())
    alone = all(steps_without_sync(record) is not None for record in group)
    which = "without synchronization" if alone else "with synchronization, which hides most of it"
    yield (
        f"{text}slowest, rank {slowest} on {spec.place_of(slowest)}, whose step takes "
        f"{ratios.max():.2f} × the mean over ranks ({which}; median of "
        f"{units.counted(len(group), 'repetition')})"
    )


def _uneven_shards(sizes: tuple[int, ...]) -> str:
    shares = " and ".join(
        f"{count} take{'s' if count == 1 else ''} {size}"
        for size, count in sorted(Counter(sizes).items(), reverse=True)
    )
    return (
        f"of {len(sizes)} replicas, {shares} samples of a global batch of {sum(sizes)}: gradients "
        "are weighted by samples, but all replicas wait for the largest shard "
        f"({max(sizes) * len(sizes) / sum(sizes):.2f} × the mean)"
    )
