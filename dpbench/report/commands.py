"""Commands of `dpbench sweep` that measure some rows of a sweep again."""

from __future__ import annotations

from collections.abc import Iterable

from dpbench.analysis.fastest import Fastest
from dpbench.specs import AXES, Configuration
from dpbench.specs.command_line import CommandLine
from dpbench.specs.traits import BACKENDS

MAX_DECIDING_REPETITIONS = 30
"""Most repetitions of a command that decides a tie. They are ten times as many as a sweep has, but
of two rows, so that they take about as long; nobody would wait longer."""


def command_to_decide(command: CommandLine, fastest: Fastest) -> str:
    """The command that decides between the fastest row and its nearest rival of another
    implementation, or else of another backend; empty without one, or if MAX_DECIDING_REPETITIONS
    are too few."""
    row = fastest.row
    rivals = [one for one in fastest.rivals if row and one.series != row.series]
    others = [one for one in rivals if row and one.implementation != row.implementation]
    rival = next(iter(others or rivals), None)
    repetitions = fastest.repetitions_to_decide(rival) if rival else None
    if not repetitions or repetitions > MAX_DECIDING_REPETITIONS:
        return ""
    both = [one.configuration for one in (row, rival) if one]
    return command_to_measure(command.again(repetitions=repetitions), both)


def command_to_measure(command: CommandLine, measured: Iterable[Configuration | None]) -> str:
    """The command that measures configurations of a sweep again, in all combinations of their
    values; empty for those of other commands, which do not measure rows alone, and for published
    rows, which have none.

    It is the `command` of the sweep with the values of the configurations in place of its lists,
    and without the name of its folder and options that none of them has.
    """
    configurations = [one for one in measured if one]
    if not configurations or command.name != "sweep":
        return ""
    narrowed = dict[str, Iterable[object]]()
    for setting, axis in AXES.items():
        field = axis.option or setting
        if field in command.options:
            those = [one for one in configurations if one.traits.has_setting(setting)]
            narrowed[field] = [axis.text(one.setting(setting)) for one in those]
    narrowed |= {
        "implementations": [one.implementation for one in configurations],
        "backends": [one.backend for one in configurations if one.backend in BACKENDS],
        "group_sizes": sorted(one.group_size for one in configurations),
        "batch_sizes": sorted(one.batch_size for one in configurations if one.batch_size),
        "threads": sorted(one.threads for one in configurations),
    }
    values = {field: [*dict.fromkeys(each)] for field, each in narrowed.items()}
    return command.again(name=None, **values).text
