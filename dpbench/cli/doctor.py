"""`dpbench doctor`: the machine, the versions, and whether each backend works."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dpbench.environment import Environment
    from dpbench.launch.selftest import SelfTest


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
) -> int:
    """Show the machine, the versions, and a two-rank all-reduce self-test per backend."""
    from dpbench import environment
    from dpbench.launch.machine import inspect_machine
    from dpbench.launch.selftest import self_test
    from dpbench.specs import PROCESS_GROUP_BACKENDS

    machine = inspect_machine()
    here = environment.capture(accelerators=machine.gpus, cuda=machine.cuda)
    tests = [self_test(backend, machine) for backend in PROCESS_GROUP_BACKENDS]
    if as_json:
        _print_json(here, tests)
    else:
        _print_text(here, tests)
    broken = [test for test in tests if not test.passed and test.ranks]
    return 1 if broken else 0


def _print_json(here: Environment, tests: list[SelfTest]) -> None:
    import json
    from dataclasses import asdict

    document = {"environment": asdict(here), "backends": [asdict(test) for test in tests]}
    typer.echo(json.dumps(document, indent=1))


def _print_text(here: Environment, tests: list[SelfTest]) -> None:
    from dpbench import units

    typer.echo(f"system    {here.system} {here.kernel}, Python {here.python}, {here.hostname}")
    memory = units.bytes_binary(here.memory_bytes)
    typer.echo(f"cpu       {here.cpu}, {here.cores} usable cores, {memory}")
    typer.echo(f"governor  {here.governor or 'not readable'}")
    for gpu in here.accelerators:
        size = units.bytes_binary(gpu.memory_bytes)
        typer.echo(f"gpu {gpu.index}     {gpu.name}, {size}, {gpu.uuid or 'no uuid'}")
    if not here.accelerators:
        build = f"CUDA {here.cuda}" if here.cuda else "a CPU build"
        typer.echo(f"gpu       none visible (torch is {build})")
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
