from __future__ import annotations

import subprocess
import sys

import pytest

from dpbench.launch import host
from dpbench.launch import readings as module
from dpbench.launch.machine import Machine
from dpbench.launch.readings import take_readings
from dpbench.records.environment import core_numbers, usable_cores

MACHINE = Machine(cores=usable_cores(), gpus=(), cuda=None, missing_backends=())
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def test_looking_runs_a_trial_and_leaves_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(module, "LOOPS", 10)
    monkeypatch.setattr(module, "TRIAL_STEPS", 3)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    readings = take_readings(MACHINE)
    assert readings.harness.reason is None
    assert readings.harness.cpu_share is not None
    assert 0 < readings.harness.cpu_share < 0.5
    assert readings.harness.trial_seconds < readings.seconds
    assert 0 < readings.loop_p50_seconds <= readings.loop_p99_seconds
    assert (readings.cores, readings.gpus, readings.gpu_use) == (usable_cores(), 0, None)
    assert readings.omp_threads == "3"


@linux
def test_a_process_that_computes_is_the_load_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.5)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            load = module._load(core_numbers())
        finally:
            child.kill()
    assert load is not None
    assert 0.1 < load.busy_share <= 1.0
    assert load.busiest_process is not None


def test_a_process_that_changes_its_name_is_charged_only_for_what_it_took_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As kernel threads do: kworker/1:2-events becomes kworker/1:2-mm."""
    answers = iter([{7: ("kworker-a", 90.0)}, {7: ("kworker-b", 90.0), 8: ("new", 0.01)}])
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(host, "process_seconds", lambda: next(answers))
    load = module._load(core_numbers())
    assert load is not None
    assert load.busiest_process == "new (pid 8)"
    assert load.busiest_share < 0.01 / 0.05


def test_the_loop_that_is_timed_takes_longer_at_its_99th_percentile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = iter(range(10_000))
    gaps = [1] * 197 + [5, 7, 9]
    times = [t for gap in gaps for t in (0, gap)]
    monkeypatch.setattr(module, "LOOP_ADDITIONS", 1)
    monkeypatch.setattr(module, "perf_counter", lambda: times[next(ticks)])
    assert module._busy_loop() == (1, 7)
