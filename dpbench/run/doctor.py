"""What `dpbench doctor` answers: whether this machine and each backend work."""

from __future__ import annotations

from dataclasses import replace

from dpbench import units
from dpbench.launch.collective_runner import self_test
from dpbench.launch.machine import inspect_machine
from dpbench.messages import say
from dpbench.options.setup import DoctorOptions
from dpbench.report.answer import Answer
from dpbench.report.answers.setup import doctor_answer
from dpbench.specs.traits import BACKENDS


def doctor(options: DoctorOptions) -> Answer:
    """Examine this machine. The exit status is 1 if a backend fails that should work, or there are
    fewer usable GPUs than wanted."""
    machine = inspect_machine()
    tests = [self_test(name, machine) for name in BACKENDS]
    lacks_gpus = len(machine.gpus) < (options.gpus or 0)
    if lacks_gpus:
        usable = units.counted(len(machine.gpus), "usable GPU")
        say(f"--gpus {options.gpus}: this machine has {usable}")
    fails = any(test.status.is_failure for test in tests)
    return replace(doctor_answer(machine.environment, tests), exit_status=int(lacks_gpus or fails))
