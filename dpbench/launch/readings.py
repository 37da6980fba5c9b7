"""Readings that show whether this machine is fit to measure on; they take a few seconds."""

from __future__ import annotations

import os
from dataclasses import dataclass
from time import perf_counter, process_time, sleep

from dpbench.launch import host
from dpbench.launch.agent import ElasticLauncher
from dpbench.launch.host import CpuTimes, Frequency, GpuUse
from dpbench.launch.machine import Machine
from dpbench.records import environment
from dpbench.records.trial import Status
from dpbench.specs import SYSTEM, TrialSpec, WorkloadSpec
from dpbench.temporary import temporary_folder

IDLE_SECONDS = 1.0
LOOPS = 200
LOOP_ADDITIONS = 100_000
"""Additions in a piece of work: about 2 to 5 ms, the length of a short training step."""
TRIAL_STEPS = 50
TRIAL_LIMIT_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Load of the usable cores while this process slept."""

    seconds: float
    busy_share: float
    """Busy share of all usable cores together, 0 to 1, without this process."""
    stolen_share: float
    busiest_process: str | None
    """Name of the busiest process; None if no visible process took CPU time."""
    busiest_share: float
    """The busiest process's share of all usable cores together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Harness:
    """CPU use of the launching process itself while a trial ran, its start included."""

    replicas: int
    trial_seconds: float
    cpu_share: float | None
    """Share of one core; None if the trial did not complete."""
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Readings:
    """All readings; None means not readable, unless stated otherwise."""

    seconds: float
    """Seconds that all readings took."""
    cores: int
    physical_cores: int | None
    quota_cores: float | None
    """CPU quota in cores; infinite without a limit."""
    load: Load | None
    load_average: float | None
    loop_p50_seconds: float
    loop_p99_seconds: float
    harness: Harness
    governors: tuple[str, ...] | None
    frequency: Frequency | None
    boost: bool | None
    throttle_events: int | None
    """Throttle events while the readings were taken."""
    omp_threads: str | None
    """Value of OMP_NUM_THREADS; None if it is not set."""
    torch_threads: int
    """Threads that torch uses in a process that does not set a number."""
    swapped_bytes: int | None
    gpus: int
    gpu_use: GpuUse | None


def take_readings(machine: Machine) -> Readings:
    """Watch the idle machine, time a loop on it, and run a trial; takes several seconds.

    Raises LaunchError if the server that starts ranks does not start.
    """
    import torch

    start = perf_counter()
    cores = environment.core_numbers()
    throttled_before = host.throttle_count(cores)
    load = _load(cores)  # first, while nothing of ours runs
    used = host.gpu_use(machine.gpus) if machine.gpus else None
    p50, p99 = _busy_loop()
    harness = _harness(machine)
    throttled = host.throttle_count(cores)
    return Readings(
        cores=machine.cores,
        physical_cores=host.physical_cores(cores),
        quota_cores=environment.quota_cores(),
        load=load,
        load_average=host.load_average(),
        loop_p50_seconds=p50,
        loop_p99_seconds=p99,
        harness=harness,
        governors=host.governors(cores),
        frequency=host.frequency(cores),
        boost=environment.boost(),
        throttle_events=None
        if throttled is None or throttled_before is None
        else throttled - throttled_before,
        omp_threads=os.environ.get("OMP_NUM_THREADS"),
        torch_threads=torch.get_num_threads(),
        swapped_bytes=host.swapped_bytes(),
        gpus=machine.gpu_count,
        gpu_use=used,
        seconds=perf_counter() - start,
    )


def _load(cores: tuple[int, ...]) -> Load | None:
    """Busy time of `cores` over IDLE_SECONDS of sleep, minus this process's own."""
    processes = host.process_seconds()
    before, own, start = host.cpu_times(cores), process_time(), perf_counter()
    sleep(IDLE_SECONDS)
    after, own, seconds = host.cpu_times(cores), process_time() - own, perf_counter() - start
    if before is None or after is None:
        return None
    spent: CpuTimes = after - before
    took = {
        (name, pid): total - processes.get(pid, ("", 0.0))[1]  # by id: threads of the kernel
        for pid, (name, total) in host.process_seconds().items()  # change their names
        if pid != os.getpid()
    }
    (name, pid), most = max(took.items(), key=lambda item: item[1], default=(("", 0), 0.0))
    return Load(
        seconds=seconds,
        busy_share=max(0.0, spent.busy - own) / spent.total,
        stolen_share=spent.stolen / spent.total,
        busiest_process=f"{name} (pid {pid})" if most > 0 else None,
        busiest_share=most / (seconds * len(cores)),
    )


def _busy_loop() -> tuple[float, float]:
    """Median and 99th percentile of the seconds for equal pieces of work."""
    seconds = []
    for _ in range(LOOPS):
        start, total = perf_counter(), 0
        for number in range(LOOP_ADDITIONS):
            total += number
        seconds.append(perf_counter() - start)
    seconds.sort()
    return seconds[LOOPS // 2], seconds[int(LOOPS * 0.99)]


def _harness(machine: Machine) -> Harness:
    replicas = min(2, machine.cores)
    trial = TrialSpec(
        workload=WorkloadSpec(architecture="mlp", dataset="synthetic"),
        implementation="ddp",
        backend="gloo",
        group_size=replicas,
        batch_size=32,
        warmup_steps=2,
        timed_steps=TRIAL_STEPS,
        threads_per_replica=1,
        devices=("cpu",) * replicas,
        phase_steps=0,
        gradient_steps=0,
        allocator=SYSTEM,
    )
    with temporary_folder() as folder:
        launcher = ElasticLauncher(machine, None, folder / "logs")
        start, own = perf_counter(), process_time()
        outcome = launcher.run(trial, TRIAL_LIMIT_SECONDS)
        own, seconds = process_time() - own, perf_counter() - start
    completed = outcome.status is Status.COMPLETED
    return Harness(
        replicas=replicas,
        trial_seconds=seconds,
        cpu_share=own / seconds if completed else None,
        reason=outcome.reason,
    )
