"""`dpbench doctor --quiet-machine`: what was found, what to do about it, what is not known."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from dpbench import units
from dpbench.cli.messages import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dpbench.launch.findings import Finding
    from dpbench.launch.machine import Machine


def show_quiet_machine(machine: Machine, *, as_json: bool, strict: bool) -> bool:
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
        _print_text(found, readings.seconds)
    return not strict or all(finding.verdict != "warning" for finding in found)


def _print_text(found: Sequence[Finding], seconds: float) -> None:
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
