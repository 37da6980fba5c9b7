"""`dpbench doctor`: the machine, the versions, whether each backend works; is it quiet?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dpbench.cli.messages import say

if TYPE_CHECKING:
    from dpbench.environment import Environment
    from dpbench.launch.machine import Machine
    from dpbench.launch.selftest import SelfTest


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
    gpus: Annotated[
        str | None,
        typer.Option(metavar="N", help="Exit status 1 unless so many GPUs are usable."),
    ] = None,
    quiet_machine: Annotated[
        bool,
        typer.Option(
            "--quiet-machine",
            help="Instead: is this machine fit to measure on? Takes about 10 s.",
        ),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="With --quiet-machine: exit status 1 for a warning.")
    ] = False,
) -> int:
    """Show the machine, the versions, and a two-rank all-reduce self-test per backend.

    Exit status: 1 if a backend that should work here fails, else 0.
    """
    from dpbench.errors import UsageError
    from dpbench.launch.machine import inspect_machine
    from dpbench.values import positive_int

    wanted = None if gpus is None else positive_int("--gpus", gpus)
    if strict and not quiet_machine:
        raise UsageError(
            "--strict judges what --quiet-machine finds; add it, or leave --strict out"
        )
    machine = inspect_machine()
    if quiet_machine:
        from dpbench.cli.quiet_machine import show_quiet_machine

        passed = show_quiet_machine(machine, as_json=as_json, strict=strict)
    else:
        passed = _show_machine(machine, as_json=as_json)
    if wanted is not None and machine.gpu_count < wanted:
        from dpbench import units

        found = units.counted(machine.gpu_count, "usable GPU")
        say(f"--gpus {wanted}: this machine has {found}")
        return 1
    return 0 if passed else 1


def _show_machine(machine: Machine, *, as_json: bool) -> bool:
    """Prints what there is; False if a backend that should work does not."""
    from dpbench.cli.this_machine import here as environment_of
    from dpbench.launch.selftest import self_test
    from dpbench.traits import PROCESS_GROUP_BACKENDS

    here = environment_of(machine, synthetic=False)
    tests = [self_test(backend, machine) for backend in PROCESS_GROUP_BACKENDS]
    if as_json:
        _print_json(here, tests)
    else:
        _print_text(here, tests)
    return all(test.passed or not test.ranks for test in tests)


def _print_json(here: Environment, tests: list[SelfTest]) -> None:
    import json
    from dataclasses import asdict

    document = {"environment": asdict(here), "backends": [asdict(test) for test in tests]}
    typer.echo(json.dumps(document, indent=1))


def _print_text(here: Environment, tests: list[SelfTest]) -> None:
    from dpbench import units

    typer.echo(f"system    {here.system} {here.kernel}, Python {here.python}, {here.hostname}")
    memory = units.bytes_binary(here.memory_bytes)
    cores = f"{units.counted(here.cores, 'usable core')} ({here.affinity})"
    typer.echo(f"cpu       {here.cpu}, {cores}, {memory}")
    if here.quota_cores is not None:
        typer.echo(f"quota     {here.quota_cores:g} cores' worth of time (cgroup)")
    typer.echo(f"governor  {here.governor or 'not readable'}")
    for gpu in here.accelerators:
        size = units.bytes_binary(gpu.memory_bytes)
        typer.echo(f"gpu {gpu.index}     {gpu.name}, {size}, {gpu.uuid or 'no uuid'}")
        if gpu.links:
            typer.echo(f"          to each GPU: {' '.join(gpu.links)}")
    if not here.accelerators:
        build = f"CUDA {here.cuda}" if here.cuda else "a CPU build"
        typer.echo(f"gpu       none visible (torch is {build})")
    if here.gpu_driver:
        typer.echo(f"driver    NVIDIA {here.gpu_driver}")
    typer.echo("versions  " + ", ".join(f"{name} {version}" for name, version in here.versions))
    for name, value in here.variables:
        typer.echo(f"variable  {name}={value}")
    for test in tests:
        typer.echo(f"backend   {test.backend}: {_result(test)}")


def _result(test: SelfTest) -> str:
    from dpbench import units

    if not test.passed:
        return ("failed: " if test.ranks else "not usable: ") + (test.reason or "")
    took = units.seconds(test.seconds) if test.seconds is not None else "not timed"
    return f"works: 4 KiB all-reduce between {units.counted(test.ranks, 'rank')} in {took} (median)"
