"""`dpbench report`: the headline, one warning, the table, and where to read on."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from dpbench import units
from dpbench.analysis.analyze import Analysis
from dpbench.analysis.fastest import Fastest
from dpbench.messages import one_line
from dpbench.report.answer import Answer
from dpbench.report.answers.comm import comm_answer
from dpbench.report.commands import command_to_decide, command_to_measure
from dpbench.report.configurations import terminal_table
from dpbench.report.formatting import percentage, plus_minus, quantity
from dpbench.report.notes import notes_of
from dpbench.report.table import keep_on_line


def report_answer(
    analysis: Analysis,
    *,
    columns: str | None = None,
    page: Path | None = None,
    to_explain: str | None = None,
    verbose: bool = False,
) -> Answer:
    """Whether trials are missing, the headline, at most one warning, the table, why rows failed or
    who measured them, how many repetitions were or would be enough, and below it where the report
    is, what to run next, and how many notes `verbose` would print. Collectives have a table of
    their own.

    What is next explains the script `to_explain`. Without one it decides between the fastest rows
    if they tie, or else explains them. After a busy machine it measures disturbed rows again.

    Raises UnknownName or UsageError for unknown columns.
    """
    if analysis.collectives:
        return comm_answer(analysis.collectives, page=page)
    warnings, others = notes_of(analysis, "warning"), notes_of(analysis, "reading")
    by_work = analysis.fastest
    first = [
        *analysis.unfinished,
        *headline_sentences(by_work),
        *(f"Warning: {warning}" for warning in warnings[:1]),
    ]
    parts = [] if page is None else [f"Report: {page}"]
    is_explained = any(e.trains_together and not e.is_too_noisy for e in analysis.explanations)
    if analysis.sweep and analysis.disturbance.is_busy:
        disturbed = [row.configuration for row in analysis.rows if row.is_disturbed]
        again = command_to_measure(analysis.sweep.command, [*filter(None, disturbed)])
        parts += [f"Next: {again}"] if again else []
    elif analysis.sweep and is_explained:
        command = f"dpbench explain {shlex.quote(to_explain or str(analysis.sweep.folder))}"
        for fastest in () if to_explain else by_work.values():
            command = command_to_decide(analysis.sweep.command, fastest) or command
        parts.append(f"Next: {command}")
    hidden = {"more warning": len(warnings[1:]), "note": len(others)}
    counts = [units.counted(count, name) for name, count in hidden.items() if count]
    if counts and not verbose:
        parts.append(f"({', '.join(counts)}: --verbose)")
    return Answer(
        paragraphs=(
            "\n".join(first),
            terminal_table(analysis.rows, columns),
            notes_of(analysis, "failed", "source", "repetitions"),
            [*warnings[1:], *others] if verbose else [],
            "   ".join(map(keep_on_line, parts)),
        )
    )


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
    doubt = f", but {fastest.doubt}" if fastest.doubt else ""
    if rivals:
        count = len(rivals)
        others = one_line(rivals[0].label) if count == 1 else f"{count:,} others"
        if all(rival.throughput and rival.throughput.is_too_noisy for rival in rivals):
            noisy = f"{'is' if count == 1 else 'are'} too noisy to compare with it"
            return f"no clear winner: {label} at {value}, but {others} {noisy}{doubt}"
        speeds = [rival.throughput.value for rival in rivals if rival.throughput]
        apart = math.ceil(100 * max(abs(1 - each / speed.value) for each in speeds))
        return (
            f"no clear winner: {label}, {value}, and {others} tie within {max(1, apart)} %{doubt}"
        )
    if doubt:
        return f"perhaps the fastest: {label} at {value}{doubt}"
    if fastest.others and speed.basis != "repetitions":
        one_run = "one run cannot show whether another is as fast"
        return f"fastest in a single run: {label} at {value}; {one_run}"
    efficiency = row.efficiency if row.group_size > 1 else None
    if efficiency is None or efficiency.is_too_noisy:
        return f"fastest: {label} at {value}"
    scaling = f"{percentage(efficiency)} of linear scaling from {row.speedup_reference}"
    return f"fastest: {label} at {value}, {scaling}"
