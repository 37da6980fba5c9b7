"""The threads of the replicas."""

from __future__ import annotations

import subprocess
import sys

# GNU's OpenMP counts the threads of a process, so this one must have done nothing else.
PROGRAM = """
import os, torch
from dpbench.parallel.dp.workers import WorkerPool

def threads():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(1)
pool = WorkerPool([torch.device("cpu")] * 2, 1)
before = threads()
print(pool.run([torch.get_num_threads] * 2), threads() - before)
"""


def test_each_replica_has_one_thread_and_an_idle_one_that_shortens_the_spinning_of_others() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert finished.stdout == "[1, 1] 4\n"
