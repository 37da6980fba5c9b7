"""`dpbench doctor`: the machine, the versions, whether each backend works; is it quiet?"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from dpbench import units
from dpbench.messages import say
from dpbench.options.bridge import read_value
from dpbench.options.types import Count

if TYPE_CHECKING:
    from dpbench.launch.machine import Machine


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    gpus: Annotated[
        str | None,
        typer.Option(metavar="N", help="Exit with status 1 unless this many GPUs are usable."),
    ] = None,
    quiet_machine: Annotated[
        bool,
        typer.Option(
            "--quiet-machine",
            help="Check whether this machine is quiet enough to benchmark on (2 s).",
        ),
    ] = False,
) -> int:
    """Check the machine, the versions and each backend.

    Exit status: 1 if a backend that should work here fails, else 0.
    """
    from dpbench.launch.machine import inspect_machine

    wanted = None if gpus is None else read_value("--gpus", Count, gpus)
    machine = inspect_machine()
    if quiet_machine:
        _show_quiet_machine(machine, as_json=as_json)
        passed = True
    else:
        passed = _show_machine(machine, as_json=as_json)
    if wanted is not None and machine.gpu_count < wanted:
        found = units.counted(machine.gpu_count, "usable GPU")
        say(f"--gpus {wanted}: this machine has {found}")
        return 1
    return 0 if passed else 1


def _show_machine(machine: Machine, *, as_json: bool) -> bool:
    """Prints what there is; False if a backend that should work does not."""
    from dpbench.launch.selftest import self_test
    from dpbench.report.doctor import machine_answer
    from dpbench.run.this_machine import environment_here
    from dpbench.specs.traits import PROCESS_GROUP_BACKENDS

    backends = {name: self_test(name, machine) for name in PROCESS_GROUP_BACKENDS}
    found = machine_answer(environment_here(machine), backends)
    typer.echo(found.render(as_json=as_json), nl=False)
    return all(test.passed or not test.ranks for test in backends.values())


def _show_quiet_machine(machine: Machine, *, as_json: bool) -> None:
    from dpbench.launch.quiet import look
    from dpbench.report.doctor import quiet_answer

    say("checking for about 2 s; leave the machine idle")
    start = perf_counter()
    found = look(machine)
    seconds = perf_counter() - start
    typer.echo(quiet_answer(found, seconds).render(as_json=as_json), nl=False)
