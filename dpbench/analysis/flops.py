"""Floating-point operations per second of a configuration, and their share of the peak.

achieved FLOP/s = FLOPs per item × items per second
MFU             = achieved FLOP/s ÷ sum of the peaks of the GPUs that it ran on

MFU is model FLOPs utilisation (Chowdhery et al., "PaLM", 2022, arXiv:2204.02311, appendix B): only
operations that the mathematics needs count. The peak is that of the trial's dtype: of float32 on
the vector units, which trials of it keep to; of the others on the tensor cores, in dense products.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from dpbench.analysis.estimate import Estimate
from dpbench.environment import Environment
from dpbench.records import TrialRecord
from dpbench.specs import TrialSpec, WorkloadSpec

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


def _device_names(trial: TrialSpec, machines: Sequence[Environment]) -> list[str]:
    """Names of the distinct devices; replicas that share one share its peak."""
    gpus = {
        (host, f"cuda:{gpu.index}"): gpu.name
        for host, machine in enumerate(machines)
        for gpu in machine.accelerators
    }
    return [gpus.get(place, machines[place[0]].cpu) for place in dict.fromkeys(trial.places)]


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath(TABLE).read_text(encoding="utf-8"))
