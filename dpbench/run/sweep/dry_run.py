"""`--dry-run`: the configurations that a sweep would measure, and the least time it takes."""

from __future__ import annotations

import math
from collections import Counter

from dpbench import units
from dpbench.analysis.formatting import span
from dpbench.launch.machine import Machine
from dpbench.messages import say
from dpbench.options.sweep import SweepOptions
from dpbench.report.answer import Answer
from dpbench.report.answers.setup import plan_answer
from dpbench.run.sweep.measuring import SweepRun
from dpbench.specs import SweepSpec
from dpbench.specs.configuration import MAX_FILLING_STEPS

SECONDS_PER_TRIAL = 0.3
"""The least time of a trial beside its windows: start, warm-up, phases and end of ranks on the
CPU."""


def describe_plan(options: SweepOptions, run: SweepRun) -> Answer:
    """The configurations that a sweep measures, in the order of their first run, and a summary
    with a lower bound of its time, which is said beside JSON; nothing is stored. With --resume only
    what is left counts.

    A plan may have more replicas than this machine has devices; without --oversubscribe, the
    summary says what a run needs.
    """
    spec = run.sweep.spec
    left = run.left
    planned = spec.configurations
    duration = "as long as its steps take"
    timed = span(each.steps for each in planned)
    if spec.window_seconds is not None:
        windows = sum(2 if each.has_unsynced_window else 1 for each, _ in left)
        least = windows * spec.window_seconds + len(left) * SECONDS_PER_TRIAL
        duration = f"at least {units.seconds(math.floor(least) if least > 10 else least)}"
        timed += f" to {MAX_FILLING_STEPS:,}"
    if options.script is not None:  # most of its time may be its start
        duration = "each takes as long as the script needs for its start and these steps"
    needs = "" if options.oversubscribe else _needs_in_words(spec, run.runner.machines[0])
    warmup = span(each.warmup for each in planned)
    resuming = f"Resuming: {run.stored_words}. " if options.resume else ""
    summary = (
        f"{resuming}{units.counted(len(left), 'trial')} of "
        f"{warmup} warm-up and {timed} timed steps, "
        f"{span((each.threads for each in planned), 'thread')} per "
        f"replica; {duration}. This plan stored nothing{needs}."
    )
    runs = dict.fromkeys(planned, 0) | Counter(each for each, _ in left)
    if options.as_json:
        say(summary)
    return plan_answer(runs, run.unusable, summary)


def _needs_in_words(spec: SweepSpec, machine: Machine) -> str:
    """End of a sentence on what the sweep needs and this machine lacks; "" if it has enough."""
    devices = len(spec.devices)
    cores = max(each.threads for each in spec.configurations) * max(spec.group_sizes)
    if devices > machine.replica_count:
        needed = units.counted(devices, "GPU" if machine.gpus else "core")
    elif cores > machine.cores:
        needed = units.counted(cores, "core")
    else:
        return ""
    return f"; the sweep itself needs {needed}, or --oversubscribe"
