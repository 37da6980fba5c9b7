"""`dpbench doctor`: the machine, the versions, whether each backend works; is it quiet?"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from dpbench import units
from dpbench.errors import UsageError
from dpbench.messages import say
from dpbench.values import positive_int

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dpbench.environment import Environment
    from dpbench.launch.allocator_gain import AllocatorGain
    from dpbench.launch.findings import MachineFinding
    from dpbench.launch.machine import Machine
    from dpbench.launch.selftest import SelfTest


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
            help="Check whether this machine is quiet enough to benchmark on (10 s).",
        ),
    ] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="With --quiet-machine, exit with status 1 on any warning."),
    ] = False,
) -> int:
    """Check the machine, the versions and each backend.

    Exit status: 1 if a backend that should work here fails, else 0.
    """
    from dpbench.launch.machine import inspect_machine

    wanted = None if gpus is None else positive_int("--gpus", gpus)
    if strict and not quiet_machine:
        raise UsageError(
            "--strict judges what --quiet-machine finds; add it, or leave --strict out"
        )
    machine = inspect_machine()
    if quiet_machine:
        passed = _show_quiet_machine(machine, as_json=as_json, strict=strict)
    else:
        passed = _show_machine(machine, as_json=as_json)
    if wanted is not None and machine.gpu_count < wanted:
        found = units.counted(machine.gpu_count, "usable GPU")
        say(f"--gpus {wanted}: this machine has {found}")
        return 1
    return 0 if passed else 1


def _show_machine(machine: Machine, *, as_json: bool) -> bool:
    """Prints what there is; False if a backend that should work does not."""
    from dpbench.launch.allocator_gain import measure_allocator_gain
    from dpbench.launch.selftest import self_test
    from dpbench.run.this_machine import here as environment_of
    from dpbench.traits import LOCAL_BACKENDS

    here = environment_of(machine, synthetic=False)
    tests = [self_test(backend, machine) for backend in LOCAL_BACKENDS]
    kept = measure_allocator_gain()
    if as_json:
        document = {
            "environment": asdict(here),
            "backends": [asdict(test) for test in tests],
            "allocator": asdict(kept),
        }
        typer.echo(json.dumps(document, indent=1))
    else:
        _print_text(here, tests, kept)
    return all(test.passed or not test.ranks for test in tests)


def _print_text(here: Environment, tests: list[SelfTest], kept: AllocatorGain) -> None:
    from dpbench.requirements import PYTHON, TORCH

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
        is_rocm = here.cuda is not None and here.cuda.startswith("ROCm")
        build = (here.cuda if is_rocm else f"CUDA {here.cuda}") if here.cuda else "a CPU build"
        typer.echo(f"gpu       none visible (torch is {build})")
    if here.gpu_driver:
        typer.echo(f"driver    NVIDIA {here.gpu_driver}")
    least = f"Python {_version(PYTHON)}, torch {_version(TORCH)}"
    typer.echo(f"needs     {least} or later")
    typer.echo("versions  " + ", ".join(f"{name} {version}" for name, version in here.versions))
    for name, value in here.variables:
        typer.echo(f"variable  {name}={value}")
    for test in tests:
        typer.echo(f"backend   {test.backend}: {_result(test)}")
    typer.echo(f"allocator {kept.text}")


def _version(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _result(test: SelfTest) -> str:
    if not test.passed:
        return ("failed: " if test.ranks else "not usable: ") + (test.reason or "")
    took = units.seconds(test.seconds) if test.seconds is not None else "not timed"
    return f"works: 4 KiB all-reduce between {units.counted(test.ranks, 'rank')} in {took} (median)"


def _show_quiet_machine(machine: Machine, *, as_json: bool, strict: bool) -> bool:
    """Looks, prints, and tells whether the exit status is 0: without `strict` it always is."""
    from dpbench.launch.findings import findings
    from dpbench.launch.quiet import look

    say("looking for about 10 s; leave the machine alone meanwhile")
    readings = look(machine)
    found = findings(readings)
    if as_json:
        listed = [{**asdict(finding), "verdict": finding.verdict} for finding in found]
        typer.echo(json.dumps({"seconds": readings.seconds, "findings": listed}, indent=1))
    else:
        _print_verdict(found, readings.seconds)
    return not strict or all(finding.verdict != "warning" for finding in found)


def _print_verdict(found: Sequence[MachineFinding], seconds: float) -> None:
    for finding in found:
        mark = "!" if finding.verdict == "warning" else " "
        typer.echo(f"{mark} {finding.kind:<11} {finding.text}")
        if finding.advice:
            typer.echo(f"  {'':<11} -> {finding.advice}")
    warnings = [finding for finding in found if finding.verdict == "warning"]
    unknown = [finding.kind for finding in found if finding.verdict == "not readable"]
    count = units.counted(len(warnings), "warning") if warnings else "no warning"
    rest = f"; not known to be good, because not readable: {', '.join(unknown)}" if unknown else ""
    typer.echo(f"{count} in {units.seconds(seconds)}{rest}")
