"""`dpbench report`: the headline, the first warnings, the table, and where to read on."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dpbench import units
from dpbench.analysis.analyze import Analysis
from dpbench.analysis.collectives import Collectives
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.fastest import Fastest, average_ratios
from dpbench.analysis.formatting import percentage, plus_minus, rate_with_unit, three_digits
from dpbench.analysis.rows import Row
from dpbench.folders import Sweep
from dpbench.messages import one_line
from dpbench.records.environment import environment_line
from dpbench.report.answer import Answer
from dpbench.report.answers.comm import collectives_answer
from dpbench.report.commands import next_command
from dpbench.report.configurations import configurations_table
from dpbench.report.table import keep_on_line
from dpbench.specs.command_line import CommandLine
from dpbench.specs.labels import row_name
from dpbench.specs.traits import BACKENDS

MAX_WARNINGS = 2
"""Most warnings above the table; further ones are notes."""
MAX_TIES_NAMED = 5
"""Most rows that are named as tied."""


def report_answer(
    results: Analysis | Collectives,
    *,
    columns: str | None = None,
    page: Path | None = None,
    last_command: CommandLine | None = None,
    verbose: bool = False,
) -> Answer:
    """The headline, the first warnings, the table, and below it where the report is, what to run
    next (see `next_command`), and how many notes `verbose` would print. Of collectives, the
    warnings and the table.

    Raises UsageError for unknown columns.
    """
    if isinstance(results, Collectives):
        return collectives_answer(results, page)
    warnings = results.warnings
    notes = results.notes
    following = next_command(results, last_command)
    parts = [f"Report: {page}"] if page else []
    parts += [f"Next: {following}"] if following else []
    hidden = {"more warning": len(warnings[MAX_WARNINGS:]), "note": len(notes)}
    counts = [units.counted(count, name) for name, count in hidden.items() if count]
    if counts and not verbose:
        parts.append(f"({', '.join(counts)}: --verbose)")
    warned = [f"Warning: {warning}" for warning in warnings[:MAX_WARNINGS]]
    table = configurations_table(results.rows, columns)
    last = "   ".join(map(keep_on_line, parts))
    if sweep := results.sweep:
        repetitions = units.counted(sweep.spec.repetitions, "repetition")
        machine = environment_line(sweep.environments, {*sweep.environments})
        last = f"Measured: {works_of(sweep)}; {repetitions}; {machine}\n{last}"
    return Answer(
        paragraphs=(
            "\n".join((*headline_sentences(results), *warned)),
            table,
            [*warnings[MAX_WARNINGS:], *notes] if verbose else [],
            last.strip(),
        )
    )


def works_of(sweep: Sweep) -> str:
    """The scripts that it measured, or the models with their data: "mlp on digits; gpt on text"."""
    names = (
        shlex.join(work.script) if work.script else f"{work.architecture} on {work.dataset}"
        for work in sweep.spec.workloads
    )
    return one_line("; ".join(dict.fromkeys(names)))


def headline_sentences(analysis: Analysis) -> Iterator[str]:
    """For each work, one sentence for each batch size: the fastest configuration, and how well it
    scales; and last which backend or other setting is faster on average over the batch sizes."""
    for work, part in analysis.by_work.items():
        of_batches = [fastest for fastest in analysis.fastest if fastest.work == work]
        ratios = [*average_ratios(part.rows)] if of_batches else []
        sentences = [_sentence(fastest, has_averages=bool(ratios)) for fastest in of_batches]
        sentences += _averages(ratios, of_batches)
        prefix = f"{one_line(work)}: " if work else ""
        for sentence in sentences:
            yield f"{prefix}{sentence if prefix else sentence[:1].upper() + sentence[1:]}."


def _averages(
    ratios: Iterable[tuple[str, Estimate, str]], of_batches: Sequence[Fastest]
) -> Iterator[str]:
    """The values of settings that are faster on average, or backends that tie as rows do."""
    have_winners = all(fastest.row and not fastest.ties for fastest in of_batches)
    average = "on average over all batch sizes" if len(of_batches) > 1 else "on average"
    for first, ratio, second in ratios:
        if ratio.ends[0] > 1:
            yield f"{average}, {first} is {plus_minus(ratio)} × as fast as {second}"
        elif first in BACKENDS and not have_winners:
            yield f"{average}, {' and '.join(sorted((first, second)))} tie, too"


def _sentence(fastest: Fastest, *, has_averages: bool) -> str:
    """The fastest row of a batch size, or why there is none; with its lead if no averages follow
    that say more."""
    sentence = _named(fastest)
    if fastest.row is None or fastest.lead is None or has_averages:
        return sentence
    ratio, other = fastest.lead
    lead = f"{plus_minus(ratio)} × as fast as {_name(other, fastest)}"
    return f"{sentence}; repetition by repetition, {_name(fastest.row, fastest)} is {lead}"


def _named(fastest: Fastest) -> str:
    """The fastest row of a batch size, and what ties with it, or why there is none."""
    row = fastest.row
    throughput = None if row is None else row.throughput
    at = f" at batch {fastest.batch_size:,}" if fastest.batch_size else ""
    if row is None or throughput is None or fastest.reason:
        return f"no fastest configuration{at}: {fastest.reason}"
    label = _name(row, fastest)
    value = rate_with_unit(throughput)
    load = f", but {fastest.load}" if fastest.load else ""
    if fastest.rivals and throughput.basis != "repetitions":
        why = "one run cannot show whether another is as fast"
        return f"fastest in a single run{at}: {label} at {value}; {why}{load}"
    if ties := fastest.ties:
        names = listed([label, *(_name(tie, fastest) for tie in ties)])
        lowest = min(tie.throughput.value for tie in ties if tie.throughput)
        ends = dict.fromkeys(map(three_digits, (lowest, throughput.value)))
        speeds = f"{'–'.join(ends)} {one_line(throughput.unit)}"
        return f"no clear winner{at}: {names} tie at {speeds}{load}"
    if fastest.rivals:
        names = listed([_name(rival, fastest) for rival in fastest.rivals])
        has_single_run = any(len(rival.throughputs) == 1 for rival in fastest.rivals)
        why = "too noisy or with too few runs" if has_single_run else "too noisy"
        return f"no clear winner{at}: {label} at {value}; {why} to compare: {names}{load}"
    if load:
        return f"perhaps the fastest{at}: {label} at {value}{load}"
    efficiency = row.efficiency if row.group_size > 1 else None
    if efficiency is None or efficiency.is_too_noisy:
        return f"fastest{at}: {label} at {value}"
    scaling = f"{percentage(efficiency)} of linear scaling from {row.speedup_reference}"
    doubt = ", which may be slow alone" if row.is_above_linear else ""
    return f"fastest{at}: {label} at {value}, {scaling}{doubt}"


def _name(row: Row, fastest: Fastest) -> str:
    """The label of a row, without the batch size where all have the same."""
    size = None if fastest.batch_size else row.batch_size
    return one_line(row_name(row.series, row.group_size, row.replicas_by_node, size))


def tied_with(row: Row, of_batches: Iterable[Fastest]) -> str:
    """The other rows that tie as the fastest of a batch size, if a row is one of them."""
    for fastest in of_batches:
        level = [tied for tied in (fastest.row, *fastest.ties) if tied]
        others = [tied for tied in level if tied.configuration != row.configuration]
        if 0 < len(others) < len(level) and not fastest.reason:
            return listed([_name(tied, fastest) for tied in others])
    return ""


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are: "a, b, c and 2 others"."""
    parts = [*names[:MAX_TIES_NAMED]]
    left = len(names) - MAX_TIES_NAMED
    if left > 0:
        parts.append(units.counted(left, "other"))
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last
