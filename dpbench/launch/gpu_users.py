"""Who else uses the GPUs: asked of nvidia-smi, which comes with every driver."""

from __future__ import annotations

import csv
import os
import subprocess
from collections.abc import Callable, Collection
from dataclasses import dataclass

from dpbench.environment import Accelerator

Query = Callable[[str], str]
TIME_LIMIT_SECONDS = 10.0
UUID_PREFIX = "GPU-"
"""nvidia-smi writes it before the identifier that torch gives."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuUse:
    """What happens on the visible GPUs while nothing of ours runs there."""

    processes: tuple[str, ...]
    """Processes that are not this one: "python (pid 12)"; those of other containers are unseen."""
    busiest_percent: float
    """Of the GPU whose processors are busiest: their time over the last moment."""


def gpu_use(gpus: Collection[Accelerator], query: Query | None = None) -> GpuUse | None:
    """The use of `gpus`; None where nvidia-smi is not there or does not tell."""
    ask = query or _nvidia_smi
    ours = {(gpu.uuid or "").removeprefix(UUID_PREFIX) for gpu in gpus}
    try:
        shares = _rows(ask("--query-gpu=uuid,utilization.gpu"), ours)
        users = _rows(ask("--query-compute-apps=gpu_uuid,pid,process_name"), ours)
        busiest = max(float(share) for _, share in shares)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    others = dict.fromkeys(
        f"{name} (pid {pid})" for _, pid, name in users if pid != str(os.getpid())
    )
    return GpuUse(processes=tuple(others), busiest_percent=busiest)


def _rows(text: str, uuids: Collection[str]) -> list[list[str]]:
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return [row for row in rows if row and row[0].removeprefix(UUID_PREFIX) in uuids]


def _nvidia_smi(query: str) -> str:
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=TIME_LIMIT_SECONDS, check=True
    ).stdout
