"""Resources of a trial's step besides time: memory, traffic, operations."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from dpbench.records.environment import Environment
from dpbench.records.trial import TrialRecord
from dpbench.specs import Configuration

PEAK_TABLE_FILE = "peak_flops.toml"
PEAK_KEYS = {"f32": ["float32"], "tf32": ["tf32"], "bf16": ["half"], "f16": ["half", "float16"]}
"""Keys of the peak table by dtype."""
DTYPE_WORDS = {
    "f32": "float32 without tensor cores, which convolutions in TF32 can exceed",
    "tf32": "TF32",
    "bf16": "bfloat16",
    "f16": "float16",
}

PAGE_FAULT_SECONDS = 1e-6
"""About the time in which Linux maps and clears a page of 4 KiB; 1.7 µs on a virtual machine."""
COSTLY_SHARE = 0.05
"""Share of a step from which page faults are worth a word."""
KEEP_MEMORY = "MALLOC_TRIM_THRESHOLD_=1000000000 MALLOC_MMAP_THRESHOLD_=1000000000"
"""Variables of the environment with which glibc keeps freed memory."""


def costly_page_faults(
    rows: Iterable[Sequence[TrialRecord]], environments: Mapping[str, Environment] = {}
) -> list[int]:
    """Mean numbers of page faults in a step of the rows where they take a large share of it: glibc
    returns freed memory to the system, which maps it anew in the next step.

    Empty if these are less than a third of all rows on a CPU. Those whose trials had KEEP_MEMORY
    set do not count, nor those on which it has no effect, the threads of `dp`.
    """
    costly, counted = list[int](), 0
    for records in rows:
        windows = [
            rank.timed
            for record in records
            for rank in record.ranks
            if rank.device == "cpu" and rank.timed.page_faults is not None
            if not record.configuration.traits.one_process
            if not any(
                environments[name].variables.get("MALLOC_TRIM_THRESHOLD_")
                for name in record.environment_ids
                if name in environments
            )
        ]
        faults = sum(window.page_faults or 0 for window in windows)
        counted += bool(windows)
        if faults * PAGE_FAULT_SECONDS > COSTLY_SHARE * sum(window.seconds for window in windows):
            costly.append(round(faults / sum(len(window.step_seconds) for window in windows)))
    return costly if 3 * len(costly) >= counted else []


def peak_memory(record: TrialRecord) -> int | None:
    """The largest peak in bytes over ranks: allocated on the device, else resident on the host.

    The two are never mixed: one rank with device memory makes it device memory.
    """
    device = [rank.peaks.device_bytes for rank in record.ranks]
    host = [rank.peaks.host_bytes for rank in record.ranks]
    return max(filter(None, device), default=None) or max(host, default=None)


def memory_imbalance(record: TrialRecord) -> float | None:
    """Largest ÷ mean peak memory over its ranks; None for a single rank."""
    peaks = [rank.peaks.device_bytes or rank.peaks.host_bytes for rank in record.ranks]
    return max(peaks) * len(peaks) / sum(peaks) if len(peaks) > 1 else None


def peak_items_per_second(
    configuration: Configuration,
    flops_per_item: float | None,
    environments: Iterable[Environment | None],
) -> tuple[float | None, str]:
    """The throughput that would use the GPUs' peak, with the source of the peak or why it is not
    known; (None, "") on CPUs. Replicas that share a GPU share its peak.

    Args:
        flops_per_item: None if no trial of the workload counted its operations.
        environments: those of the nodes; None where one is not stored.
    """
    gpus, dtype = gpu_names(environments), configuration.workload.dtype
    if not gpus or not all(place in gpus for place in configuration.node_devices):
        return None, ""
    if flops_per_item is None:
        return None, "no MFU: no trial of this workload counted its operations"
    peaks = []
    for name in map(gpus.__getitem__, dict.fromkeys(configuration.node_devices)):
        if (peak := peak_of(name, dtype)) is None:
            table = _peak_table()["dated"]
            return None, f"no MFU: the {dtype} peak of {name} is not in the table of {table}"
        peaks.append(peak)
    total = sum(flops for flops, _ in peaks)
    sources = "; ".join(dict.fromkeys(source for _, source in peaks))
    note = f"MFU: of {total / 1e12:,.1f} TFLOP/s in {DTYPE_WORDS[dtype]} ({sources})"
    return total / flops_per_item, note


def peak_of(name: str, dtype: str = "f32") -> tuple[float, str] | None:
    """Peak FLOP/s of a GPU by the driver's full name for it, and its source; None if it is not in
    the table."""
    for gpu in _peak_table()["gpu"]:
        known = [gpu[key] for key in PEAK_KEYS[dtype] if key in gpu]
        if known and re.fullmatch(gpu["name"], name):
            return known[0], gpu["source"]
    return None


def gpu_names(environments: Iterable[Environment | None]) -> dict[tuple[int, str], str]:
    """Models of the GPUs by node and device, as in (0, "cuda:1"); None is not stored."""
    return {
        (node, f"cuda:{gpu.index}"): gpu.name
        for node, environment in enumerate(environments)
        if environment is not None
        for gpu in environment.accelerators
    }


@cache
def _peak_table() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath(PEAK_TABLE_FILE).read_text(encoding="utf-8"))
