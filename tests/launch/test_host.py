"""The files of other machines, as dictionaries of their contents."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

from dpbench.launch import host
from dpbench.launch.host import CpuTimes, Frequency, GpuUse, gpu_use
from dpbench.records.environment import Accelerator, core_numbers

CPU = "/sys/devices/system/cpu"
TICKS = host.TICKS_PER_SECOND
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def stat(*rows: str) -> dict[str, str]:
    return {"/proc/stat": "\n".join(["cpu  9 9 9 9 9 9 9 9 0 0", *rows, "intr 5", "ctxt 7"])}


def test_busy_is_what_is_neither_idle_nor_waiting_for_a_disk() -> None:
    files = stat(
        "cpu0 1 2 3 40 5 6 7 8 0 0", "cpu1 1 1 1 1 1 1 1 1 0 0", "cpu2 0 0 0 9 0 0 0 0 0 0"
    )
    assert host.cpu_times([0, 2], files.get) == CpuTimes(
        total=81 / TICKS, busy=27 / TICKS, stolen=8 / TICKS
    )


def test_the_times_of_a_core_that_is_not_listed_are_not_readable() -> None:
    assert host.cpu_times([0, 1], stat("cpu0 1 2 3 4 5 6 7 8 0 0").get) is None
    assert host.cpu_times([0], {}.get) is None


@linux
def test_a_busy_process_is_seen_and_costs_what_it_takes() -> None:
    loop = [sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(loop) as child:
        try:
            time.sleep(0.3)
            name, mine = host.process_seconds()[child.pid]
            assert name.startswith("python")
            times = psutil.Process(child.pid).cpu_times()
            assert 0 < mine <= times.user + times.system + 0.05
        finally:
            child.kill()


def frequencies(core: int, *khz: int) -> dict[str, str]:
    names = ("scaling_cur_freq", "scaling_min_freq", "scaling_max_freq", "cpuinfo_max_freq")
    return {f"{CPU}/cpu{core}/cpufreq/{n}": str(value) for n, value in zip(names, khz, strict=True)}


def test_the_frequency_is_that_of_the_core_with_the_lowest_limit() -> None:
    files = frequencies(0, 2_000_000, 800_000, 3_400_000, 3_400_000)
    files |= frequencies(1, 1_000_000, 800_000, 1_700_000, 3_400_000)
    assert host.frequency([0, 1], files.get) == Frequency(
        current=1e9, lowest=0.8e9, highest=1.7e9, hardware=3.4e9
    )
    assert host.frequency([0, 1, 2], files.get) is None


def test_every_core_has_a_governor_or_none_is_known() -> None:
    files = {f"{CPU}/cpu{core}/cpufreq/scaling_governor": "powersave" for core in (0, 1)}
    assert host.governors([0, 1], files.get) == ("powersave", "powersave")
    assert host.governors([0, 2], files.get) is None


def test_siblings_are_one_physical_core() -> None:
    pairs = {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}
    files = {f"{CPU}/cpu{c}/topology/thread_siblings_list": pair for c, pair in pairs.items()}
    assert host.physical_cores([0, 1, 2, 3], files.get) == 2
    assert host.physical_cores([0, 1], files.get) == 2
    assert host.physical_cores([0, 4], files.get) is None


def test_throttling_is_summed_over_cores_and_zero_is_not_unknown() -> None:
    files = {f"{CPU}/cpu{c}/thermal_throttle/core_throttle_count": str(c) for c in (0, 3)}
    assert host.throttle_count([0, 3], files.get) == 3
    assert host.throttle_count([0], files.get) == 0
    assert host.throttle_count([1], files.get) is None


def test_swap_in_use_is_in_bytes() -> None:
    files = {"/proc/meminfo": "MemTotal: 9 kB\nSwapTotal:  1000 kB\nSwapFree:   990 kB\n"}
    assert host.swapped_bytes(files.get) == 10 * 1024
    assert host.swapped_bytes({"/proc/meminfo": "MemTotal: 9 kB"}.get) is None


@linux
def test_this_host_is_read_as_psutil_reads_it() -> None:
    assert host.load_average() == pytest.approx(psutil.getloadavg()[0], abs=2.0)
    assert host.swapped_bytes() == pytest.approx(psutil.swap_memory().used, abs=2**24)
    times = host.cpu_times(core_numbers())
    assert times is not None
    assert 0 <= times.stolen <= times.busy <= times.total


GPUS = (Accelerator(index=0, name="H200", memory_bytes=2**37, uuid="11-aa"),)
ANSWERS = {
    "--query-gpu=uuid,utilization.gpu": "GPU-11-aa, 3\nGPU-22-bb, 99\n",
    "--query-compute-apps=gpu_uuid,pid,process_name": (
        'GPU-11-aa, 41, "/usr/bin/python, x"\nGPU-22-bb, 42, other\n'
    ),
}


def test_only_users_of_the_visible_gpus_count() -> None:
    assert gpu_use(GPUS, ANSWERS.__getitem__) == GpuUse(
        processes=("/usr/bin/python, x (pid 41)",), busiest_percent=3.0
    )


@pytest.mark.parametrize("share", ["[N/A]", ""])
def test_a_gpu_that_does_not_tell_is_not_called_idle(share: str) -> None:
    answers = {**ANSWERS, "--query-gpu=uuid,utilization.gpu": f"GPU-11-aa, {share}\n"}
    assert gpu_use(GPUS, answers.__getitem__) is None
    assert gpu_use(GPUS, lambda _: "") is None


def test_without_nvidia_smi_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert gpu_use(GPUS) is None
