"""What is read of a quiet machine, of a busy one, and of one that tells nothing."""

from __future__ import annotations

import math
from dataclasses import replace

from dpbench.launch.host import Frequency, GpuUse
from dpbench.launch.readings import Harness, Load, Readings

IDLE = Load(seconds=1.0, busy_share=0.01, stolen_share=0.0, busiest_process=None, busiest_share=0.0)
FULL_SPEED = Frequency(current=3e9, lowest=1e9, highest=3.4e9, hardware=3.4e9)
QUIET = Readings(
    seconds=5.0,
    cores=4,
    physical_cores=4,
    quota_cores=math.inf,
    load=IDLE,
    load_average=0.1,
    loop_p50_seconds=0.004,
    loop_p99_seconds=0.0042,
    harness=Harness(replicas=2, trial_seconds=2.0, cpu_share=0.01),
    governors=("performance",) * 4,
    frequency=FULL_SPEED,
    boost=False,
    throttle_events=0,
    omp_threads=None,
    torch_threads=4,
    swapped_bytes=0,
    gpus=1,
    gpu_use=GpuUse(processes=(), busiest_percent=0.0),
)
BUSY = replace(IDLE, busy_share=0.38, busiest_process="python (pid 412)", busiest_share=0.31)
UNKNOWN = replace(
    QUIET,
    physical_cores=None,
    quota_cores=None,
    load=None,
    load_average=None,
    harness=Harness(replicas=2, trial_seconds=2.0, cpu_share=None, reason="rank 1 raised x"),
    governors=None,
    frequency=None,
    boost=None,
    throttle_events=None,
    omp_threads="many",
    swapped_bytes=None,
    gpu_use=None,
)
