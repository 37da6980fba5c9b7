"""Hints that an expert would give on these records, and notes on other load that disturbed them.

glibc gives freed memory back to the kernel and takes it again, a page fault for every page: on the
CPU that can be a tenth of a training step. Where a sweep measured both allocators the gain is a
measurement; elsewhere many page faults are a reason to measure it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

import numpy as np

from dpbench import units
from dpbench.analysis.configuration import by_configuration, usable_repetitions
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.resources import gpu_names, page_faults_per_step
from dpbench.analysis.scaling import Speed, gain
from dpbench.analysis.throughput import (
    is_measured,
    rank_step_seconds,
    slowest_rank_step_seconds,
    steps_without_sync,
)
from dpbench.records.environment import Environment
from dpbench.records.trial import HostLoad, TrialRecord
from dpbench.specs import KEEP, SYSTEM, TrialSpec

BUSY = 0.1
"""Share of the usable cores from which others' work disturbs trials on the CPU."""
BUSY_BESIDE_GPUS = 0.5
"""Share for trials on GPUs, whose ranks need little of the cores."""
MANY = 0.1
"""Share of disturbed trials from which no figure of the sweep can be trusted."""


def is_disturbed(record: TrialRecord) -> bool:
    """Whether others used so much of the cores that they affect the trial's times; False if that
    was not measured."""
    load = record.host_load
    if load is None or not record.ranks:
        return False
    limit = BUSY if record.trial.devices[0] == "cpu" else BUSY_BESIDE_GPUS
    return _share(load) >= limit


def load_notes(records: Sequence[TrialRecord]) -> tuple[str, ...]:
    """Notes on the load of others, the number of trials, and what to do; () on a quiet machine."""
    looked_at = [record for record in records if record.host_load and record.ranks]
    busy = [record for record in looked_at if is_disturbed(record)]
    if not busy:
        return ()
    loads = [record.host_load for record in busy if record.host_load]
    cores = units.counted(max(load.cores for load in loads), "core")
    trials = f"{len(busy):,} of {units.counted(len(looked_at), 'trial')}"
    few = len(busy) < MANY * len(looked_at)
    verdict = (
        "their intervals may be wide; more --repetitions help"
        if few
        else "figures are not to be trusted; free the machine and measure again (dpbench doctor "
        "--quiet-machine names what runs)"
    )
    return (f"{_who(loads)} used {_range(loads)} of {cores} during {trials}: {verdict}",)


def _who(loads: Sequence[HostLoad]) -> str:
    stolen = sum(load.stolen for load in loads)
    others = sum(load.during for load in loads)
    return "other guests of this virtual machine's host" if stolen > others else "other processes"


def _range(loads: Sequence[HostLoad]) -> str:
    """The least and the most load, in percent of all usable cores."""
    return f"{units.span(round(100 * min(1.0, _share(load))) for load in loads)} %"


def _share(load: HostLoad) -> float:
    return (load.during + load.stolen) / load.cores


HintKind = Literal["nccl", "page faults", "unlike gpus", "uneven shards"]

NCCL_GPUS = 4
"""Fewest GPUs for which gloo, which stages gradients through the host, is called the wrong
choice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hint:
    """One remark on some configurations, and the number behind it."""

    kind: HintKind
    value: float | None
    """The number; None if not measured."""
    unit: str
    text: str


def hints(
    records: Sequence[TrialRecord], environments: Mapping[str, Environment]
) -> tuple[Hint, ...]:
    """Remarks on what deserves a change or a second look, and nothing that was done already."""
    groups = by_configuration(
        record
        for record in records
        if is_measured(record) and len(record.ranks) == record.trial.process_count
    )
    return (
        *_try_nccl(groups, records, environments),
        *memory_hints(groups),
        *(h for spec, group in groups.items() for h in _unlike_gpus(spec, group, environments)),
        *(
            _uneven_shards(sizes)
            for sizes in dict.fromkeys(s.replica_batch_sizes for s in groups)
            if len(set(sizes)) > 1
        ),
    )


def _try_nccl(
    groups: Mapping[TrialSpec, Sequence[TrialRecord]],
    records: Sequence[TrialRecord],
    environments: Mapping[str, Environment],
) -> list[Hint]:
    """Remark on gloo with many GPUs, unless nccl was tried, with or without success."""
    if any(record.trial.backend == "nccl" for record in records):
        return []
    sizes = [
        len(set(spec.places))
        for spec, group in groups.items()
        if spec.backend == "gloo"
        and spec.devices[0] != "cpu"
        and any(_has_cuda(record, environments) for record in group)
    ]
    most = max(sizes, default=0)
    if most < NCCL_GPUS:
        return []
    text = (
        f"gloo stages the gradients of {most} GPUs through the host; nccl sends them from GPU to "
        "GPU: add --backends gloo,nccl"
    )
    return [Hint(kind="nccl", value=most, unit="GPUs", text=text)]


def _has_cuda(record: TrialRecord, environments: Mapping[str, Environment]) -> bool:
    environment = environments.get(record.environment_id)
    return environment is not None and environment.cuda is not None


def _unlike_gpus(
    spec: TrialSpec, group: Sequence[TrialRecord], environments: Mapping[str, Environment]
) -> list[Hint]:
    names = list(dict.fromkeys(n for record in group for n in _gpu_names(record, environments)))
    if len(names) < 2:
        return []
    text = f"{spec.label}: its GPUs differ ({', '.join(names)}); all wait for the slowest"
    ratio = None
    if spec.process_count > 1:
        slowest, ratio = _slowest_rank(group)
        text += (
            f", rank {slowest} on {spec.place_of(slowest)}, whose step takes {ratio:.2f} × the "
            f"mean over ranks ({_which_steps(group)}; median of "
            f"{units.counted(len(group), 'repetition')})"
        )
    return [Hint(kind="unlike gpus", value=ratio, unit="slowest ÷ mean step", text=text)]


def _gpu_names(record: TrialRecord, environments: Mapping[str, Environment]) -> list[str]:
    """The models of the trial's GPUs, in the order of its replicas."""
    models = gpu_names(map(environments.get, record.environment_ids))
    return [models[place] for place in record.trial.places if place in models]


def _slowest_rank(group: Sequence[TrialRecord]) -> tuple[int, float]:
    """The rank with the longest mean step, and that step ÷ the mean over ranks, both as medians
    over repetitions."""
    steps = np.array([rank_step_seconds(record) for record in group])
    ratios = np.median(steps / steps.mean(axis=1, keepdims=True), axis=0)
    return int(ratios.argmax()), float(ratios.max())


def _which_steps(group: Sequence[TrialRecord]) -> str:
    timed = all(steps_without_sync(record) is not None for record in group)
    return "without synchronization" if timed else "with synchronization, which hides most of it"


def _uneven_shards(sizes: tuple[int, ...]) -> Hint:
    largest, total = max(sizes), sum(sizes)
    excess = largest * len(sizes) / total
    taken = Counter(sizes)
    shares = " and ".join(
        f"{count} take{'s' if count == 1 else ''} {size}"
        for size, count in sorted(taken.items(), reverse=True)
    )
    text = (
        f"of {len(sizes)} replicas, {shares} samples of a global batch of {total}: gradients are "
        f"weighted by samples, but all replicas wait for the largest shard ({excess:.2f} × the "
        "mean)"
    )
    return Hint(kind="uneven shards", value=excess, unit="largest ÷ mean shard", text=text)


FAULT_SECONDS = 0.5e-6
"""Least time to map and clear a page of 4 KiB; on virtual machines it may be three times as
much."""
LARGE = 0.05
"""Smallest share of a step whose page faults are worth advice."""
OPTION = "--allocator keep"


def memory_hints(groups: Mapping[TrialSpec, Sequence[TrialRecord]]) -> tuple[Hint, ...]:
    """Rows that would or may be faster if their ranks kept the memory that they free.

    Measured gains come first; then one line for all rows whose gain was not measured. The number
    behind a hint is the page faults per step with the system's allocator, the most of its rows.
    `groups` holds the trials of each configuration.
    """
    usable = {spec: found for spec, group in groups.items() if (found := usable_repetitions(group))}
    measured, unknown = [], {}
    for spec, group in usable.items():
        faults = _page_faults(group)
        if spec.allocator != SYSTEM or faults is None:
            continue
        kept = usable.get(replace(spec, allocator=KEEP))
        if kept is not None:
            faster = gain(Speed.of(group), Speed.of(kept))
            if faster.interval is not None and faster.interval[0] > 1:
                measured.append(_gained(spec, faults, _page_faults(kept), faster))
        elif faults * FAULT_SECONDS >= LARGE * fmean(map(slowest_rank_step_seconds, group)):
            unknown[spec.label] = faults
    return (*measured, *_to_measure(unknown))


def _gained(spec: TrialSpec, faults: float, faults_kept: float | None, found: Estimate) -> Hint:
    left = "" if faults_kept is None else f", {faults_kept:,.0f} with it"
    low, high = found.ends
    text = (
        f"{spec.label}: {OPTION} makes it {units.percent(found.value - 1)} faster (95 % interval "
        f"{units.percent(low - 1)} to {units.percent(high - 1)}; {faults:,.0f} page faults per "
        f"step without it{left}); dpbench train and dpbench launch keep freed memory by default"
    )
    return _of_page_faults(faults, text)


def _to_measure(rows: Mapping[str, float]) -> list[Hint]:
    if not rows:
        return []
    label, most = max(rows.items(), key=lambda item: item[1])
    others = f" (and {units.counted(len(rows) - 1, 'more row')})" if len(rows) > 1 else ""
    text = (
        f"{label}{others}: {most:,.0f} page faults per step, as the C library gives freed memory "
        f"back and takes it again; measure what keeping it gains: --allocator {SYSTEM},{KEEP}"
    )
    return [_of_page_faults(most, text)]


def _of_page_faults(count: float, text: str) -> Hint:
    return Hint(kind="page faults", value=count, unit="page faults/step", text=text)


def _page_faults(group: Sequence[TrialRecord]) -> float | None:
    known = [count for record in group if (count := page_faults_per_step(record)) is not None]
    return fmean(known) if known else None
