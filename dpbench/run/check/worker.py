"""The program that measures one version for a check, repetitions as they are asked for.

It keeps its Python, its torch and, until it is told otherwise, the server that its ranks are forked
from, so that a repetition takes little more than its steps. Its argument is JSON about the sweep;
each line of stdin is JSON as well: the number of repetitions to reach, 0 at first, and whether with
ranks of a new server. When the sweep is planned, of which nothing is stored yet, and when they are
reached, stdout has a line of JSON: the sweep, and what was said meanwhile. Like `__main__` it
imports nothing heavy at the top, as ranks import their main module again.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpbench.folders import Sweep


def main() -> int:
    """Measure until stdin ends; the exit status. What else would be printed goes to stderr."""
    answers = os.dup(1)
    os.dup2(2, 1)
    from dpbench.codec import decode, encode
    from dpbench.errors import DpbenchError
    from dpbench.launch.fork_server import end_fork_server
    from dpbench.messages import said_to
    from dpbench.options.reading import read_options
    from dpbench.options.sweep import SweepOptions
    from dpbench.report.progress.trials import TrialProgress
    from dpbench.run.check.plan import for_verdict
    from dpbench.run.interrupts import end_at_once
    from dpbench.run.sweep.measuring import measure
    from dpbench.run.sweep.plan import plan_sweep
    from dpbench.specs.command_line import CommandLine

    said = list[str]()

    def answer(sweep: Sweep) -> None:
        content = {"sweep": encode(sweep.spec), "said": said}
        os.write(answers, json.dumps(content).encode() + b"\n")
        said.clear()

    def repetitions(sweep: Sweep, first: str) -> Iterator[int]:
        for line in chain([first], sys.stdin):
            count, anew = json.loads(line)
            if anew:
                end_fork_server()
            yield count
            answer(sweep)

    end_at_once()
    asked = json.loads(sys.argv[1])
    try:
        options = read_options(SweepOptions, asked["options"])
        with said_to(said.append), plan_sweep(options) as plan:
            plan = for_verdict(plan, options, decode(CommandLine, asked["command"]))
            sys.stdin.readline()
            answer(plan.sweep)
            if first := sys.stdin.readline():  # the other version can be measured, too
                measure(plan, TrialProgress(quiet=True), repetitions(plan.sweep, first))
    except DpbenchError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
