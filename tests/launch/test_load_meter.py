"""The load of other processes, from this host's own counters."""

from __future__ import annotations

import subprocess
import sys
import time

from dpbench.launch.load_meter import host_load, read_cores
from dpbench.records.environment import core_numbers

BURN = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]


def test_a_process_that_computes_meanwhile_is_seen() -> None:
    with subprocess.Popen(BURN, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        start = read_cores()
        time.sleep(1.0)
        found = host_load(start, read_cores())
        other.kill()
    assert found is not None
    assert found.cores == len(core_numbers())
    assert found.during > 0.3
