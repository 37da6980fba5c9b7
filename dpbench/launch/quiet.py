"""Whether this machine is quiet enough to measure on: a table of checks, each with its limit."""

from __future__ import annotations

import csv
import os
import subprocess
from collections.abc import Callable, Collection
from dataclasses import dataclass
from time import perf_counter, process_time, sleep
from typing import Literal, NamedTuple

import psutil

from dpbench import units
from dpbench.launch.load_meter import core_seconds
from dpbench.launch.machine import Machine
from dpbench.launch.trials import HostLauncher
from dpbench.records import environment
from dpbench.records.environment import Accelerator, core_numbers, read_text
from dpbench.records.trial import Status
from dpbench.specs import TrialSpec, WorkloadSpec
from dpbench.temporary import temporary_folder

IDLE_SECONDS = 1.0
LOOPS, LOOP_ADDITIONS = 200, 100_000
"""Pieces of work, and additions in one: about 2 to 5 ms, the length of a short training step."""
TRIAL_STEPS, TRIAL_LIMIT_SECONDS = 50, 60.0
NVIDIA_SMI_SECONDS = 10.0
CPU = "/sys/devices/system/cpu/cpu{core}/"

Verdict = Literal["ok", "warning", "not readable"]


class Reading(NamedTuple):
    """What a check has read: a number to compare with its limit, and words."""

    value: float
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One property of the machine; a value above the limit is a warning."""

    kind: str
    read: Callable[[Machine], Reading | None]
    """Returns None for what cannot be read, which is neither good nor bad."""
    unit: str
    limit: float
    advice: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineFinding:
    """The result of one check."""

    kind: str
    value: float | None
    """The reading; None if it is not readable."""
    unit: str
    limit: float
    text: str
    advice: str | None
    """Remedy; None unless this is a warning."""

    @property
    def verdict(self) -> Verdict:
        if self.value is None:
            return "not readable"
        return "warning" if self.value > self.limit else "ok"


def look(machine: Machine) -> tuple[MachineFinding, ...]:
    """Make every check, which takes about 10 s; LaunchError if ranks cannot be started."""
    return tuple(_finding(check, check.read(machine)) for check in CHECKS)


def _finding(check: Check, reading: Reading | None) -> MachineFinding:
    value = None if reading is None else reading.value
    return MachineFinding(
        kind=check.kind,
        value=value,
        unit=check.unit,
        limit=check.limit,
        text="not readable" if reading is None else reading.text,
        advice=check.advice if value is not None and value > check.limit else None,
    )


def load(machine: Machine) -> Reading | None:
    """The share of the usable cores that others keep busy while this process sleeps."""
    cores = core_numbers()
    before, seen, own, start = core_seconds(cores), _seconds_of(), process_time(), perf_counter()
    sleep(IDLE_SECONDS)
    after, now = core_seconds(cores), _seconds_of()
    own, seconds = process_time() - own, perf_counter() - start
    if before is None or after is None:
        return None
    share = max(0.0, after.busy - before.busy - own) / (seconds * len(cores))
    text = (
        f"others keep {units.percent(share)} of {units.counted(len(cores), 'usable core')} busy "
        f"over {units.seconds(seconds)} (limit 5 %)"
    )
    took = {who: total - seen.get(who, 0.0) for who, total in now.items()}
    took.pop((os.getpid(), psutil.Process().name()), None)
    (pid, name), most = max(took.items(), key=lambda item: item[1], default=((0, ""), 0.0))
    if most > 0:
        busiest = units.percent(most / (seconds * len(cores)))
        text += f", most: {name} (pid {pid}) {busiest}"
    return Reading(
        100 * share, f"{text}; load average of the last minute {psutil.getloadavg()[0]:.2g}"
    )


def _seconds_of() -> dict[tuple[int, str], float]:
    """CPU seconds so far of each process that can be seen, by its id and name."""
    found = {}
    for process in psutil.process_iter(["pid", "name", "cpu_times"]):
        if (times := process.info["cpu_times"]) is not None:
            found[process.info["pid"], process.info["name"]] = times.user + times.system
    return found


def stolen(machine: Machine) -> Reading | None:
    """The share of the usable cores that the hypervisor gives to other guests meanwhile."""
    times = core_seconds(core_numbers())
    if times is None:
        return None
    sleep(IDLE_SECONDS)
    later = core_seconds(core_numbers())
    assert later is not None
    share = (later.stolen - times.stolen) / max(later.total - times.total, 1e-9)
    return Reading(
        100 * share, f"{units.percent(share)} taken by the hypervisor for other guests (limit 1 %)"
    )


def loop(machine: Machine) -> Reading:
    """The slowest of a hundred equal pieces of work, relative to their median."""
    seconds = []
    for _ in range(LOOPS):
        start, total = perf_counter(), 0
        for number in range(LOOP_ADDITIONS):
            total += number
        seconds.append(perf_counter() - start)
    seconds.sort()
    median, slow = seconds[LOOPS // 2], seconds[int(LOOPS * 0.99)]
    return Reading(
        slow / median,
        f"the same {units.seconds(median)} of work, {LOOPS} times: p99 ÷ p50 is "
        f"{slow / median:.2f} (limit 1.1)",
    )


def harness(machine: Machine) -> Reading | None:
    """The launching process's share of a core while a trial runs, its start included."""
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
    )
    with temporary_folder() as folder:
        launcher = HostLauncher(machine, None, folder / "logs")
        start, own = perf_counter(), process_time()
        outcome = launcher.run(trial, TRIAL_LIMIT_SECONDS)
        own, seconds = process_time() - own, perf_counter() - start
    if outcome.status is not Status.COMPLETED:
        return None
    share, ranks = own / seconds, units.counted(replicas, "rank")
    return Reading(
        100 * share,
        f"the launching process takes {units.percent(share)} of a core in a trial of {ranks} and "
        f"{units.seconds(seconds)}, its start included (limit 5 %)",
    )


def governor(machine: Machine) -> Reading | None:
    path = f"{CPU}cpufreq/scaling_governor"
    names = [read_text(path.format(core=core)) for core in core_numbers()]
    known = [name for name in names if name]
    if len(known) < len(names):
        return None
    others = sum(name != "performance" for name in known)
    return Reading(others, ", ".join(dict.fromkeys(known)))


def boost(machine: Machine) -> Reading | None:
    on = environment.boost()
    return None if on is None else Reading(float(on), "on" if on else "off")


def throttling(machine: Machine) -> Reading | None:
    """How often heat has slowed the cores since boot (x86 only)."""
    path = f"{CPU}thermal_throttle/core_throttle_count"
    counts = [read_text(path.format(core=core)) for core in core_numbers()]
    if not all(count is not None and count.isdecimal() for count in counts):
        return None
    events = sum(int(count or 0) for count in counts)
    return Reading(events, f"heat has slowed the cores {units.counted(events, 'time')} since boot")


def quota(machine: Machine) -> Reading | None:
    allowed = environment.quota_cores()
    if allowed is None:
        return None
    cores, allowed = machine.cores, min(allowed, machine.cores)
    of = units.counted(cores, "usable core")
    return Reading(cores - allowed, f"the cgroup allows {allowed:g} of {of}")


def siblings(machine: Machine) -> Reading | None:
    """The usable cores that share their hardware with another one (SMT)."""
    path = f"{CPU}topology/thread_siblings_list"
    names = [read_text(path.format(core=core)) for core in core_numbers()]
    if not all(names):
        return None
    cores, physical = len(names), len({*names})
    return Reading(
        cores - physical, f"{units.counted(cores, 'usable core')} are {physical} physical"
    )


def threads(machine: Machine) -> Reading | None:
    """The threads that other libraries would start in all replicas together."""
    asked = os.environ.get("OMP_NUM_THREADS")
    if asked is None:
        return Reading(
            0, "OMP_NUM_THREADS is not set; a sweep gives each replica its share of the cores"
        )
    first = asked.split(",")[0].strip()  # OpenMP's list: a number for each level of nesting
    if not first.isdecimal():
        return None
    replicas = machine.gpu_count or machine.cores
    cores = units.counted(machine.cores, "usable core")
    return Reading(
        int(first) * replicas / machine.cores,
        f"OMP_NUM_THREADS={asked} × {units.counted(replicas, 'replica')} on {cores}",
    )


def swap(machine: Machine) -> Reading | None:
    try:
        used = psutil.swap_memory().used
    except (OSError, RuntimeError):
        return None
    return Reading(used, f"{units.bytes_binary(used)} in use")


def gpu_users(machine: Machine) -> Reading | None:
    """Processes on the visible GPUs; those of other containers cannot be seen."""
    if not machine.has_cuda:
        return Reading(0, "no GPU")
    rows = gpu_rows(machine.gpus, "--query-compute-apps=gpu_uuid,pid,process_name")
    if rows is None:
        return None
    names = [f"{name} (pid {pid})" for _, pid, name in rows if pid != str(os.getpid())]
    return Reading(len(names), "; ".join(dict.fromkeys(names)) or "no process that can be seen")


def gpu_load(machine: Machine) -> Reading | None:
    if not machine.has_cuda:
        return Reading(0, "no GPU")
    rows = gpu_rows(machine.gpus, "--query-gpu=uuid,utilization.gpu")
    shares = [float(share) for _, share in rows or () if share.replace(".", "").isdecimal()]
    if not shares or len(shares) < len(rows or ()):
        return None
    busiest = max(shares)
    return Reading(busiest, f"the busiest GPU works {busiest:g} % of the time (limit 1 %)")


def gpu_rows(gpus: Collection[Accelerator], query: str) -> list[list[str]] | None:
    """The answer of nvidia-smi about these GPUs; None if it gives none."""
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=NVIDIA_SMI_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    ours = {(gpu.uuid or "").removeprefix("GPU-") for gpu in gpus}
    rows = csv.reader(answer.splitlines(), skipinitialspace=True)
    return [row for row in rows if row and row[0].removeprefix("GPU-") in ours]


CHECKS = (
    Check(
        kind="load",
        read=load,
        unit="% of the usable cores",
        limit=5.0,
        advice="end or wait for what else runs",
    ),
    Check(
        kind="stolen",
        read=stolen,
        unit="% of the usable cores",
        limit=1.0,
        advice="take a dedicated host, or more repetitions: nothing in this guest can end it",
    ),
    Check(
        kind="clock",
        read=loop,
        unit="p99 ÷ p50",
        limit=1.1,
        advice="intervals will be wide: take more repetitions and steps, or a quieter machine",
    ),
    Check(
        kind="harness",
        read=harness,
        unit="% of a core",
        limit=5.0,
        advice="leave a core to it: take one CPU replica fewer",
    ),
    Check(
        kind="governor",
        read=governor,
        unit="cores",
        limit=0,
        advice="sudo cpupower frequency-set --governor performance",
    ),
    Check(
        kind="boost",
        read=boost,
        unit="on",
        limit=0,
        advice="the clock falls as more cores work, which looks like bad scaling: switch it off in "
        "/sys/devices/system/cpu (cpufreq/boost or intel_pstate/no_turbo), or compare with "
        "independent, which pays the same",
    ),
    Check(
        kind="throttling",
        read=throttling,
        unit="events",
        limit=0,
        advice="cool the machine, or let it rest between trials",
    ),
    Check(
        kind="quota",
        read=quota,
        unit="cores",
        limit=0,
        advice="threads beyond the quota are stopped in turn: raise it, or take fewer CPU replicas",
    ),
    Check(
        kind="smt",
        read=siblings,
        unit="cores",
        limit=0,
        advice="two replicas on one physical core slow each other down: take one replica per "
        "physical core, under taskset with one core of each",
    ),
    Check(
        kind="threads",
        read=threads,
        unit="threads per core",
        limit=1.0,
        advice="a sweep sets torch's threads itself, but not those of other libraries: unset "
        "OMP_NUM_THREADS, or set it to 1",
    ),
    Check(
        kind="swap",
        read=swap,
        unit="bytes",
        limit=64 * 2**20,
        advice="free memory, or a step may wait for the disk",
    ),
    Check(
        kind="gpu users",
        read=gpu_users,
        unit="processes",
        limit=0,
        advice="end them, or leave their GPUs out with --gpus",
    ),
    Check(
        kind="gpu load",
        read=gpu_load,
        unit="%",
        limit=1.0,
        advice="somebody else uses it, perhaps from another container: wait, or leave it out",
    ),
)
