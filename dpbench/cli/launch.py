"""`dpbench launch`: torchrun, whose workers share the cores and die with it."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from dpbench.messages import say, warn
from dpbench.run.interrupts import SIGNALS

if TYPE_CHECKING:
    from dpbench.launch.worker_ends import WorkerEnd


class Verbatim(TyperCommand):
    """Arguments reach it as they are, "--" and --help too: torchrun's own parser reads them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.args = list(args)
        return []


def launch(context: typer.Context) -> int:
    """Start a script in several processes with torch's torchrun; the same options.

    Workers get their share of the cores and die with the launcher; the last lines of the rank that
    failed first are shown again.
    """
    from dpbench.environment import usable_cores
    from dpbench.errors import Interrupted
    from dpbench.launch import torchrun
    from dpbench.launch.signals import handle_unless_ignored

    try:
        chosen = torchrun.read(context.args)
    except SystemExit:  # the help is printed
        return 0
    processes, cores = int(chosen.nproc_per_node), usable_cores()
    threads = max(cores // processes, 1)
    _say_threads(processes, threads, cores)
    _say_allocator(chosen.allocator)
    if note := torchrun.overridden(chosen):
        warn(note)
    if place := torchrun.meeting_place(chosen):
        say(f"waits for the launchers of all {chosen.nnodes} nodes at {place}")
    if interface := torchrun.gloo_interface(chosen):
        say(f"gloo connects by {interface}; set GLOO_SOCKET_IFNAME to have another interface")
    if not torchrun.dies_with_launcher():
        say(f"workers outlive a launcher that is killed on {sys.platform}: only Linux ends them")
    for number in SIGNALS:  # torch waits for other nodes in C++, where Python's handlers do not run
        handle_unless_ignored(number, signal.SIG_DFL)
    try:
        torchrun.run(chosen, threads, interface, say)
    except torchrun.WorkersFailed as failed:
        _say_ends(failed.ends)
        return 1
    except Interrupted as interrupted:
        say("interrupted")
        sys.stdout.flush()
        # A second signal leaves torch's threads behind, which Python would wait for.
        os._exit(interrupted.exit_status)
    return 0


def _say_threads(processes: int, threads: int, cores: int) -> None:
    count = f"{processes} process{'es' if processes > 1 else ''}"
    if given := os.environ.get("OMP_NUM_THREADS"):
        say(f"{count} here, OMP_NUM_THREADS={given} as it is set")
    else:
        each = f"{cores} cores here; set it to have another number"
        say(f"{count} here, OMP_NUM_THREADS={threads} for each ({each})")


def _say_allocator(chosen: str) -> None:
    from dpbench.measure.allocator import reason_to_leave
    from dpbench.specs import SYSTEM

    if chosen == SYSTEM:
        return
    if reason := reason_to_leave():
        say(f"workers do not keep the memory that they free, as {reason}")
    else:
        say("workers keep the memory that they free; --allocator system leaves it to glibc")


def _say_ends(ends: tuple[WorkerEnd, ...]) -> None:
    first, *others = ends
    for end in others:
        say(f"{end}{', having lost its peer' if end.lost_peer else ''}")
    kept = "; the last lines of its stderr:" if first.last_lines else ""
    say(f"first cause: {first}{kept}")
    for line in first.last_lines:
        print(f"    {line}", file=sys.stderr)
