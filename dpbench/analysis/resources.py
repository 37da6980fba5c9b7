"""Resources of a trial's step besides time: memory, traffic, energy, operations."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import fmean
from typing import Any, Literal, TypeVar

from dpbench.analysis import throughput
from dpbench.analysis.estimate import Estimate, LogMean
from dpbench.records.environment import Environment
from dpbench.records.trial import RankMeasurement, TrialRecord
from dpbench.specs import TrialSpec, WorkloadSpec

UNBALANCED = 1.2
"""Ratio of largest to mean over ranks from which memory is called unbalanced."""

MemoryKind = Literal["device", "host"]
N = TypeVar("N", int, float)


@dataclass(frozen=True, kw_only=True, slots=True)
class PeakMemory:
    """Peak memory of one rank, and the kind of memory."""

    bytes: int
    kind: MemoryKind


def peak_memory(records: Sequence[TrialRecord]) -> PeakMemory | None:
    """The largest peak over ranks and repetitions: allocated on the device, else resident on the
    host.

    The two are never mixed: one rank with device memory makes it device memory.
    """
    device = _largest(records, lambda rank: rank.peak_device_memory_bytes)
    if device is not None:
        return PeakMemory(bytes=device, kind="device")
    host = _largest(records, lambda rank: rank.peak_host_memory_bytes)
    return None if host is None else PeakMemory(bytes=host, kind="host")


def peak_reserved_memory(records: Sequence[TrialRecord]) -> int | None:
    """The most device memory held by torch's allocator on a rank; None without a device."""
    return _largest(records, lambda rank: rank.peak_reserved_memory_bytes)


def memory_imbalance(records: Sequence[TrialRecord]) -> float | None:
    """The worst trial's largest ÷ mean peak memory over its ranks; None for a single rank."""
    ratios = []
    for record in records:
        peaks = [
            rank.peak_host_memory_bytes
            if rank.peak_device_memory_bytes is None
            else rank.peak_device_memory_bytes
            for rank in record.ranks
        ]
        known = [peak for peak in peaks if peak is not None]
        if len(known) > 1:
            ratios.append(max(known) * len(known) / sum(known))
    return max(ratios, default=None)


def reduced_bytes_per_step(records: Sequence[TrialRecord]) -> int | None:
    """Bytes of gradients (or parameters) that a rank gives to all-reduce; the largest over
    ranks."""
    return _largest(records, lambda rank: rank.reduced_bytes_per_step)


def collectives_per_step(records: Sequence[TrialRecord]) -> float | None:
    """Number of collectives that a rank takes part in per step; the largest over ranks."""
    return _largest(records, lambda rank: rank.collectives_per_step)


def _largest(
    records: Sequence[TrialRecord], read: Callable[[RankMeasurement], N | None]
) -> N | None:
    """The largest over ranks and repetitions; None where no rank has it."""
    found = (read(rank) for record in records for rank in record.ranks)
    return max((value for value in found if value is not None), default=None)


def page_faults_per_step(record: TrialRecord) -> float | None:
    """Minor page faults of a rank's process in a timed step, as the mean over ranks; None if a rank
    did not count them."""
    return _per_step(record, [rank.timed.page_faults for rank in record.ranks])


def cpu_seconds_per_step(record: TrialRecord) -> float | None:
    """Processor time of a rank's process in a timed step, the mean over ranks."""
    return _per_step(record, [rank.timed.cpu_seconds for rank in record.ranks])


def _per_step(record: TrialRecord, counts: Sequence[float | None]) -> float | None:
    known = [count for count in counts if count is not None]
    steps = [len(rank.timed.step_seconds) for rank in record.ranks]
    if not known or len(known) < len(counts) or min(steps) == 0:
        return None
    return fmean(count / number for count, number in zip(known, steps, strict=True))


def joules_per_item(records: Sequence[TrialRecord]) -> Estimate | None:
    """Energy of the GPUs over the timed window ÷ items of all replicas, over repetitions.

    None unless every rank of some repetition reported its energy. Host and network are not
    included.
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
    """Energy of a device. Ranks that share a GPU each read all of it, so they count once, with
    their mean."""
    joules = [rank.energy_joules for rank in ranks if rank.energy_joules is not None]
    return fmean(joules) if len(joules) == len(ranks) else None


TABLE = "peak_flops.toml"
PEAKS = {"f32": ["float32"], "tf32": ["tf32"], "bf16": ["half"], "f16": ["half", "float16"]}
"""Keys of the peak table by dtype."""
UNITS = {
    "f32": "float32 without tensor cores",
    "tf32": "TF32",
    "bf16": "bfloat16",
    "f16": "float16",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Utilisation:
    """Achieved FLOP/s of a configuration's devices, and the share of their peak."""

    achieved: Estimate
    """FLOP/s of all replicas together."""
    mfu: Estimate | None
    note: str
    """The peak and its source, or why there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """Peak FLOP/s of a device for a dtype."""

    flops_per_second: float
    source: str


def counted_flops(records: Iterable[TrialRecord]) -> dict[WorkloadSpec, float]:
    """Operations per item of each workload; a sweep only counts them in its first repetitions."""
    return {
        record.trial.workload: record.flops_per_item
        for record in records
        if record.flops_per_item is not None
    }


def utilisation(
    flops_per_item: float, trial: TrialSpec, throughput: Estimate, *machines: Environment
) -> Utilisation:
    """Utilisation from the throughput of a configuration in items per second, with one machine per
    host."""
    achieved = throughput.scaled(flops_per_item, unit="FLOP/s")
    dtype, peaks = trial.workload.dtype, []
    for name in _device_names(trial, machines):
        if (peak := peak_of(name, dtype)) is None:
            note = f"no MFU: the {dtype} peak of {name} is not in the table of {_table()['dated']}"
            return Utilisation(achieved=achieved, mfu=None, note=note)
        peaks.append(peak)
    total = sum(peak.flops_per_second for peak in peaks)
    sources = "; ".join(dict.fromkeys(peak.source for peak in peaks))
    return Utilisation(
        achieved=achieved,
        mfu=achieved.scaled(1 / total, unit="of peak"),
        note=f"MFU: of {total / 1e12:,.1f} TFLOP/s in {UNITS[dtype]} ({sources})",
    )


def peak_of(name: str, dtype: str = "f32") -> Peak | None:
    """The peak of a GPU by the driver's full name for it; None if it is not in the table."""
    for gpu in _table()["gpu"]:
        known = [gpu[key] for key in PEAKS[dtype] if key in gpu]
        if known and re.fullmatch(gpu["name"], name):
            return Peak(flops_per_second=known[0], source=gpu["source"])
    return None


def gpu_names(machines: Iterable[Environment | None]) -> dict[tuple[int, str], str]:
    """Models of the GPUs by host and device, as in (0, "cuda:1"); None is an unknown machine."""
    return {
        (host, f"cuda:{gpu.index}"): gpu.name
        for host, machine in enumerate(machines)
        if machine is not None
        for gpu in machine.accelerators
    }


def _device_names(trial: TrialSpec, machines: Sequence[Environment]) -> list[str]:
    """Names of the distinct devices; replicas that share one share its peak."""
    gpus = gpu_names(machines)
    return [gpus.get(place, machines[place[0]].cpu) for place in dict.fromkeys(trial.places)]


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath(TABLE).read_text(encoding="utf-8"))
