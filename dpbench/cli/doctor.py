"""`dpbench doctor`: the machine, the versions, whether each backend works."""

from __future__ import annotations

from typing import Annotated

import typer

from dpbench import units
from dpbench.messages import print_result, say
from dpbench.options.reading import read_value
from dpbench.options.types import Count


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    gpus: Annotated[
        str | None,
        typer.Option(metavar="N", help="Exit with status 1 unless this many GPUs are usable."),
    ] = None,
) -> int:
    """Check the machine, the versions and each backend.

    Exit status: 0; 1 if a backend that should work here fails, or there are fewer
    usable GPUs than --gpus; 2 usage.
    """
    from dpbench.launch.collectives import self_test
    from dpbench.launch.machine import inspect_machine
    from dpbench.report.answers.doctor import doctor_answer
    from dpbench.specs.traits import BACKENDS

    wanted = None if gpus is None else read_value("--gpus", Count, gpus)
    machine = inspect_machine()
    backends = {name: self_test(name, machine) for name in BACKENDS}
    answer = doctor_answer(machine.environment, backends)
    print_result(answer.render(as_json=as_json))
    if wanted is not None and len(machine.gpus) < wanted:
        usable = units.counted(len(machine.gpus), "usable GPU")
        say(f"--gpus {wanted}: this machine has {usable}")
        return 1
    return 0 if all(test.passed or not test.ranks for test in backends.values()) else 1
