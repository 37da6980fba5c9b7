"""`dpbench report`: the headline, one warning, the table, and where to read on."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dpbench import units
from dpbench.analysis.analyze import Analysis
from dpbench.analysis.fastest import Fastest
from dpbench.messages import escaped, one_line
from dpbench.report.answer import Answer
from dpbench.report.answers.comm import collectives_table
from dpbench.report.commands import command_to_decide, command_to_measure
from dpbench.report.configurations import configurations_table
from dpbench.report.formatting import percentage, plus_minus, quantity
from dpbench.report.notes import notes, warnings
from dpbench.report.table import keep_on_line

MAX_TIES_NAMED = 3
"""Most rows that the headline names as tied with the fastest."""
FIRST_LOOK, OWN_SCRIPT = ("--preset", "quick"), "your_script.py"
"""The options of a first look at a machine, after which users explain a script of their own."""


def report_answer(
    analysis: Analysis,
    *,
    columns: str | None = None,
    page: Path | None = None,
    typed: Sequence[str] = (),
    verbose: bool = False,
) -> Answer:
    """The headline, at most one warning, the table, and below it where the report is, what to run
    next (see `next_command`), and how many notes `verbose` would print.

    Raises UsageError for unknown columns.
    """
    first, others = warnings(analysis), notes(analysis)
    following = next_command(analysis, typed)
    parts = [f"Report: {page}"] if page else []
    parts += [f"Next: {following}"] if following else []
    hidden = {"more warning": len(first[1:]), "note": len(others)}
    counts = [units.counted(count, name) for name, count in hidden.items() if count]
    if counts and not verbose:
        parts.append(f"({', '.join(counts)}: --verbose)")
    warned = [f"Warning: {warning}" for warning in first[:1]]
    if analysis.collectives:
        table = collectives_table(analysis.collectives)
    else:
        table = configurations_table(analysis.rows, columns)
    return Answer(
        paragraphs=(
            "\n".join((*headline_sentences(analysis.fastest), *warned)),
            table,
            [*first[1:], *others] if verbose else [],
            "   ".join(map(keep_on_line, parts)),
        )
    )


def next_command(analysis: Analysis, typed: Sequence[str] = ()) -> str:
    """What to run next, "" for nothing: rows under load again if load spoiled the speeds; else it
    decides between the fastest rows if they tie, or explains them.

    `typed` is the command that has just measured, as short as it can be. It is the next one, too,
    if most rows were under load; after a first look at the machine a script is explained.
    """
    sweep = analysis.sweep
    if sweep is None:
        return ""
    if analysis.load.spoils_speeds:
        loaded = [row.configuration for row in analysis.rows if row.is_under_load]
        if typed and 2 * len(loaded) > len(analysis.rows):
            return escaped(shlex.join(["dpbench", *typed]))
        return command_to_measure(sweep.command, loaded)
    if not any(e.trains_together and not e.is_too_noisy for e in analysis.explanations):
        return ""
    if (*typed[1:3],) == FIRST_LOOK:
        return f"dpbench explain {OWN_SCRIPT}"
    ties = (command_to_decide(sweep.command, tie) for tie in analysis.fastest.values())
    explaining = f"dpbench explain {shlex.quote(str(sweep.folder))}"
    return [explaining, *filter(None, ties)][-1]


def headline_sentences(by_work: Mapping[str, Fastest]) -> Iterator[str]:
    """One sentence for each work: the fastest configuration, and how well it scales."""
    for work, fastest in by_work.items():
        sentence = _sentence(fastest)
        if fastest.rivals and fastest.faster_backend:
            first, ratio, second = fastest.faster_backend
            sentence += f"; {first} is {plus_minus(ratio)} × as fast as {second}"
        elif fastest.row and fastest.lead:
            ratio, other = fastest.lead
            row = one_line(fastest.row.label)
            sentence += f"; repetition by repetition, {row} is {plus_minus(ratio)} × as fast as "
            sentence += one_line(other.label)
        prefix = f"{one_line(work)}: " if work else ""
        yield f"{prefix}{sentence if work else sentence[:1].upper() + sentence[1:]}."


def _sentence(fastest: Fastest) -> str:
    row, rivals = fastest.row, fastest.rivals
    speed = None if row is None else row.throughput
    if row is None or speed is None or fastest.reason:
        return f"no fastest configuration: {fastest.reason}"
    label, value = one_line(row.label), quantity(speed, "rate")
    load = f", but {fastest.load}" if fastest.load else ""
    if rivals:
        ties = [rival for rival in rivals if not (rival.throughput or speed).is_too_noisy]
        names = units.some_of([one_line(rival.label) for rival in ties or rivals], MAX_TIES_NAMED)
        if not ties:
            return f"no clear winner: {label} at {value}; too noisy to compare: {names}{load}"
        speeds = [rival.throughput.value for rival in ties if rival.throughput]
        apart = math.ceil(100 * max(abs(1 - each / speed.value) for each in speeds))
        return (
            f"no clear winner: {label}, {value}, ties within {max(1, apart)} % with {names}{load}"
        )
    if load:
        return f"perhaps the fastest: {label} at {value}{load}"
    if fastest.others and speed.basis != "repetitions":
        one_run = "one run cannot show whether another is as fast"
        return f"fastest in a single run: {label} at {value}; {one_run}"
    efficiency = row.efficiency if row.group_size > 1 else None
    if efficiency is None or efficiency.is_too_noisy:
        return f"fastest: {label} at {value}"
    scaling = f"{percentage(efficiency)} of linear scaling from {row.speedup_reference}"
    return f"fastest: {label} at {value}, {scaling}"
