"""Commands that answers name: what to run next, and what measures rows of a sweep again."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import prod
from statistics import fmean
from typing import Any

from dpbench import units
from dpbench.analysis.analyze import Analysis
from dpbench.analysis.diagnosis.explanation import Explanation
from dpbench.analysis.fastest import Fastest
from dpbench.analysis.noise import repetitions_to_state
from dpbench.analysis.resources import KEEP_MEMORY, costly_page_faults
from dpbench.analysis.rows import by_configuration
from dpbench.records.trial import TrialRecord
from dpbench.specs import AXES, Configuration
from dpbench.specs.command_line import CommandLine
from dpbench.specs.traits import BACKENDS, INDEPENDENT

MAX_DECIDING_REPETITIONS = 30
"""Most repetitions of a command that decides a tie. They are ten times as many as a sweep has, but
of two rows, so that they take about as long; nobody would wait longer."""
MOST_REMEDIES = 2
"""Most settings that the command to run next compares, with each other, too."""


def next_command(
    analysis: Analysis,
    last_command: CommandLine | None = None,
    explained: Explanation | None = None,
) -> str:
    """What to run next after a table, or after one row was `explained`; "" for nothing.

    If load spoiled the speeds, it is the same command again; if page faults did, with the variables
    that prevent them. After an explanation it tries what causes advise, if anything. Else it
    decides between the fastest row, of the first work, and one that ties with it, or explains the
    fastest.

    `last_command` is the command that has just measured, as short as it can be.
    """
    sweep = analysis.sweep
    if sweep is None:
        return ""
    same = (last_command or sweep.command).again(name=None)
    if analysis.machine_load.spoils_speeds:
        return f"{same.text}   # once the machine is free"
    is_script = explained is not None and explained.is_script
    faults = costly_page_faults([row.records for row in analysis.rows], analysis.environments)
    if faults and not is_script:
        return f"export {KEEP_MEMORY} && {same.text}   # export them for your training, too"
    folder = shlex.quote(str(sweep.folder))
    if explained and sweep.command.name == "sweep":
        page = f"dpbench report {folder} --open"
        advised = _after_explanation(explained, analysis, same, page)
        if advised or explained.is_script:
            return advised
    if not any(e.trains_together and not e.row.noisy_estimates for e in analysis.explanations):
        return ""
    if last_command and last_command.options.get("preset") == "quick":
        return f"dpbench explain {folder}   # or: dpbench explain your_script.py"
    # Speeds of other work do not compete.
    competing = [each for each in analysis.fastest if each.work == analysis.fastest[0].work]
    competing.sort(key=lambda fastest: -fastest.throughput)
    deciding = filter(None, (command_to_decide(analysis, each) for each in competing))
    return next(deciding, "" if explained else f"dpbench explain {folder}")


def _after_explanation(
    explained: Explanation, analysis: Analysis, same: CommandLine, page: str
) -> str:
    """The command after the explanation of a row of a sweep, which the command `same` measures
    again: more repetitions if its speed is not clear, or what alternatives bring, those of the
    largest loss first. Else it is the `page` for a training script, and "" for a model. It says
    which loss no option changes."""
    assert analysis.sweep is not None, "only rows of a sweep are explained"

    asked = [explained.configuration, *_independent_copies(explained.configuration, analysis)]

    def again(command: CommandLine, **changes: Any) -> str:
        if explained.is_script:  # which has few rows
            return command.again(name=None, **changes).text
        return command_to_measure(command, asked, **changes)

    if noisy := explained.row.noisy_estimates:
        needed = repetitions_to_state(noisy)
        is_known = needed is not None and not explained.row.is_under_load
        return again(same, repetitions=needed) if is_known else ""
    compared = dict[str, list[str]]()
    for other in chain.from_iterable(cause.alternatives for cause in explained.causes):
        if "warmup" in other.options:
            return again(same, warmup=other.options["warmup"][-1])
        if len(compared | other.options) <= MOST_REMEDIES:
            compared |= other.options
    remarks, command = list[str](), page if explained.is_script else ""
    if compared:
        command = again(analysis.sweep.command, **compared)
        measured = [record.configuration for record in analysis.records]
        if not explained.is_script:
            measured = [*asked, explained.configuration.single]
        seconds = _seconds_of_repetition(measured, compared, analysis.records)
        took = units.seconds(round(analysis.sweep.spec.repetitions * seconds))
        remarks.append(f"about {took}")
    losses = [c for c in explained.causes if c.standing in ("loss", "part of a loss")]
    if losses and not losses[0].alternatives:
        remarks.append(f"no option changes the largest loss, {losses[0].kind}")
    return f"{command}   # {'; '.join(remarks)}" if command and remarks else command


def _seconds_of_repetition(
    measured: Iterable[Configuration],
    compared: Mapping[str, Sequence[str]],
    records: Iterable[TrialRecord],
) -> float:
    """About how long configurations take once, by the records of them, with the compared values of
    options; copies that do not communicate have no backend."""
    groups = by_configuration(records)
    seconds = 0.0
    for configuration in groups.keys() & {*measured}:
        has_backend = configuration.backend != "none"
        values = [len(v) for option, v in compared.items() if has_backend or option != "backends"]
        seconds += prod(values) * fmean(r.duration_seconds for r in groups[configuration])
    return seconds


def _independent_copies(configuration: Configuration, analysis: Analysis) -> list[Configuration]:
    """Copies that do not communicate beside this configuration, if the sweep has them, be they
    shown or not. A command that measures it again measures them, too, as explanations need them."""
    copies = replace(configuration, implementation=INDEPENDENT, backend="none").normalized
    return [copies] if any(r.configuration == copies for r in analysis.records) else []


def command_to_decide(analysis: Analysis, fastest: Fastest) -> str:
    """The command that decides between the fastest row of a sweep and its nearest rival: the same
    implementation on another backend if several were asked for, else another implementation; empty
    without one, or if MAX_DECIDING_REPETITIONS are too few. It says how long that takes."""
    row = fastest.row
    if row is None or analysis.sweep is None:
        return ""
    command = analysis.sweep.command
    is_among_backends = len(command.options.get("backends", ())) > 1
    of_series = [rival for rival in fastest.rivals if rival.series != row.series]
    of_series.sort(key=lambda r: (r.implementation == row.implementation) != is_among_backends)
    rival = next(iter(of_series), None)
    repetitions = fastest.repetitions_to_decide(rival) if rival else None
    if rival is None or not repetitions or repetitions > MAX_DECIDING_REPETITIONS:
        return ""
    both = [each.configuration for each in (row, rival) if each.configuration]
    asked = [*both, *_independent_copies(both[0], analysis)]
    rows = dict.fromkeys(filter(None, (row, rival, row.reference, rival.reference)))
    changes = {"repetitions": repetitions}
    if enough := [each.sufficient_warmup for each in rows if each.sufficient_warmup]:
        changes["warmup"] = max(enough)
    deciding = command_to_measure(command, asked, **changes)
    measured = [*asked, *(each.single for each in both)]
    seconds = _seconds_of_repetition(measured, {}, analysis.records)
    return deciding and f"{deciding}   # about {units.seconds(round(repetitions * seconds))}"


def command_to_measure(
    command: CommandLine, measured: Iterable[Configuration | None], **changes: Any
) -> str:
    """The command that measures configurations of a sweep again, in all combinations of their
    values; empty for those of other commands, which do not measure rows alone, and for published
    rows, which have none.

    It is the `command` of the sweep with the values of the configurations in place of its lists,
    and without the name of its folder and options that none of them has; `changes` are more values
    of its lists, or other values of its options.
    """
    configurations = [configuration for configuration in measured if configuration]
    if not configurations or command.name != "sweep":
        return ""
    narrowed = dict[str, Iterable[object]]()
    for setting, axis in AXES.items():
        if axis.option in command.options:
            having = [c for c in configurations if c.traits.has_setting(setting)]
            narrowed[axis.option] = [axis.text(c.setting(setting)) for c in having]
    narrowed |= {
        "implementations": [c.implementation for c in configurations],
        "backends": [c.backend for c in configurations if c.backend in BACKENDS],
        "group_sizes": sorted(c.group_size for c in configurations),
        "batch_sizes": sorted(c.batch_size for c in configurations if c.batch_size),
        "threads": sorted(c.threads for c in configurations),
    }
    values: dict[str, Any] = {field: [*dict.fromkeys(each)] for field, each in narrowed.items()}
    for field, more in changes.items():
        is_list = isinstance(more, list)  # else one value in place of all
        values[field] = [*dict.fromkeys([*more, *values.get(field, [])])] if is_list else more
    return command.again(name=None, **values).text
