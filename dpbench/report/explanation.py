"""Text and JSON of `dpbench explain`: factors, steps, phases, and a line for each large loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from dpbench import units
from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.diagnosis.advice import NOTHING_LARGE, Advice
from dpbench.analysis.diagnosis.explanation import Explanation
from dpbench.analysis.diagnosis.factors import PARTS, Part
from dpbench.analysis.diagnosis.phases import (
    PHASES,
    REPLICA_PHASES,
    PhaseName,
    ReplicaPhaseName,
    StepPhases,
)
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.fields import ReadField, Value, number, text
from dpbench.analysis.levels import COLUMNS
from dpbench.report.answer import Answer, bullets, plain_estimate
from dpbench.report.footnotes import reasons
from dpbench.report.numbers import percentage
from dpbench.report.table import MISSING, Table
from dpbench.report.terminal import folded, write_table
from dpbench.report.values import cell, table_of

MORE = "steps, phases, and how to read the numbers: --verbose"
MOST_LISTED = 8
"""Configurations that a line of advice names; the rest are counted and stand in the table."""
MEANINGS: dict[Part, str] = {
    "granularity": "`single` at the global batch ÷ at all shards one after the other; strong "
    "scaling only.",
    "contention": "`single` ÷ the typical of as many `independent` copies: the cost of sharing the "
    "machine.",
    "wrapper": "Typical copy ÷ typical rank without synchronization: the cost of hooks and "
    "buckets.",
    "balance": "Typical rank ÷ slowest rank, without synchronization.",
    "stragglers": "That rank ÷ the mean over steps of whichever rank is slowest in each, without "
    "synchronization.",
    "communication": "That mean ÷ the step with synchronization: communication that overlap does "
    "not hide.",
    "warm-up": "Step without the slow first steps of the window ÷ the mean step.",
}
PHASE_MEANINGS = {
    "data": "Time until the batch is on the device.",
    "forward": "Time of forward and loss.",
    "backward": "Time of backward without synchronization.",
    "communication": "Backward with synchronization − backward without it.",
    "optimizer": "Time of the optimizer's step and of zeroing gradients.",
    "scatter": "Part of forward: splitting the batch over the replicas of one process.",
    "replicate": "Part of forward: giving each replica of one process its module.",
    "compute": "Part of forward and backward: until the slowest replica of one process is done.",
    "gather": "Part of forward: putting the outputs of one process's replicas together.",
    "reduce": "Part of backward: adding up the gradients of one process's replicas.",
}
CONFIGURATION: ReadField[Explanation] = text(
    "configuration",
    "Implementation/backend × number of replicas, batch.",
    lambda e: e.row.label,
    header="Configuration",
)


def _of_row(key: str) -> ReadField[Explanation]:
    """The column that tables of configurations have too."""
    column = COLUMNS[key]
    return number(
        key,
        column.meaning,
        lambda e: column.read(e.row),
        unit=column.unit,
        header=column.header,
        style=column.style,
    )


def _part(part: Part) -> ReadField[Explanation]:
    def read(explanation: Explanation) -> Value:
        factor = explanation.factors.of(part)
        if factor is None:
            return None
        return factor.value if factor.parts[0] == part else f"in {factor.parts[0]}"

    return number(part, MEANINGS[part], read, header=part.capitalize(), style="ratio")


def _phase(
    key: str, meaning: str, of: Callable[[StepPhases], Estimate | None]
) -> ReadField[Explanation]:
    return number(
        key,
        meaning,
        lambda e: None if e.phases is None else of(e.phases),
        unit="s",
        header=key.replace("_", " ").capitalize(),
        style="time",
    )


def _slowest(explanation: Explanation) -> str | None:
    if (found := explanation.slowest_rank) is None:
        return None
    return f"{found.rank} (in {found.slowest_in} of {found.repetitions})"


def _seconds_of(name: PhaseName) -> Callable[[StepPhases], Estimate | None]:
    return lambda phases: None if (one := phases.of(name)) is None else one.seconds


def _of_replicas(name: ReplicaPhaseName) -> Callable[[StepPhases], Estimate | None]:
    return lambda phases: phases.of_replicas.get(name)


FACTOR_COLUMNS: tuple[ReadField[Explanation], ...] = (
    CONFIGURATION,
    _of_row("efficiency"),
    number(
        "absolute_efficiency",
        "Speedup over `single` ÷ number of replicas; the factors of a row multiply to it.",
        lambda e: e.factors.efficiency,
        header="Absolute efficiency",
        style="percent",
    ),
    *map(_part, PARTS),
)
STEP_COLUMNS: tuple[ReadField[Explanation], ...] = (
    CONFIGURATION,
    number(
        "step_seconds",
        "Mean time of a step with synchronization, on the slowest rank.",
        lambda e: e.factors.step_seconds,
        unit="s",
        header="Step",
        style="time",
    ),
    _of_row("exposed_communication_seconds"),
    _of_row("reduced_bytes_per_step"),
    _of_row("collectives_per_step"),
    _of_row("rank_skew"),
    text(
        "slowest_rank",
        "Rank that most often took longest, and in how many repetitions.",
        _slowest,
        header="Slowest rank",
    ),
)
PHASE_COLUMNS: tuple[ReadField[Explanation], ...] = (
    CONFIGURATION,
    *(_phase(name, PHASE_MEANINGS[name], _seconds_of(name)) for name in PHASES),
    *(_phase(name, PHASE_MEANINGS[name], _of_replicas(name)) for name in REPLICA_PHASES),
    _phase(
        "instrumented_step",
        "Sum of the phases: a step that waits for the device after each of them.",
        lambda phases: phases.instrumented_step_seconds,
    ),
    _phase(
        "timed_step",
        "Mean step of the timed window, over ranks.",
        lambda phases: phases.timed_step_seconds,
    ),
)


def answer(
    explanations: Sequence[Explanation],
    advice: Sequence[Sequence[Advice]],
    *,
    rows: Sequence[ConfigurationSummary] = (),
    first: Sequence[str] = (),
    notes: Sequence[str] = (),
    verbose: bool = True,
) -> Answer:
    """Tables (efficiency and its factors; the step; its phases), advice, and how to read them; the
    first table and the advice alone unless `verbose`.

    `rows` are all that were asked for: those without a speed are listed with their reasons; `first`
    says why the figures cannot be trusted. The data is an object with "configurations", one for
    each explanation, and "notes".
    """
    shown = list(tables(explanations))
    return Answer(
        paragraphs=(
            *([bullets(first)] if first else []),
            *(
                write_table(folded(table.with_wrapped_headers))
                for table in shown[: None if verbose else 1]
            ),
            bullets(advice_lines(explanations, advice)),
            bullets(
                reading(explanations, rows, notes)
                if verbose
                else (*_special(explanations, rows, notes), MORE)
            ),
        ),
        data={
            "configurations": [
                _plain(explanation, found)
                for explanation, found in zip(explanations, advice, strict=True)
            ],
            "notes": [*first, *notes],
        },
    )


def tables(explanations: Sequence[Explanation]) -> Iterator[Table]:
    """Efficiency and its factors; the step; its phases, where they were measured.

    Columns that are nowhere measured, or 1 by definition everywhere, are left out.
    """
    phased = [explanation for explanation in explanations if explanation.phases]
    for key, caption, columns, explained in (
        ("factors", "Efficiency and the factors that multiply to it", FACTOR_COLUMNS, explanations),
        ("steps", "A step: communication, traffic, skew", STEP_COLUMNS, explanations),
        ("phases", "Phases of a step", PHASE_COLUMNS, phased),
    ):
        if explained:
            kept = [
                column
                for column in columns
                if any(cell(column, one) not in (MISSING, "1") for one in explained)
            ]
            yield table_of(kept, explained, key=key, caption=caption)


def advice_lines(
    explanations: Sequence[Explanation], advice: Sequence[Sequence[Advice]]
) -> Iterator[str]:
    """A line for each advice, with all configurations that it holds for."""
    groups: dict[str, list[tuple[str, Estimate]]] = {}
    for explanation, found in zip(explanations, advice, strict=True):
        for line in found:
            groups.setdefault(line.text, []).append((explanation.row.label, line.share))
    largest = {text: max(share.value for _, share in found) for text, found in groups.items()}
    for what in sorted(groups, key=lambda text: -largest[text]):
        labels, shares = zip(*groups[what], strict=True)
        share = percentage(shares[0])
        if len(shares) > 1:
            share = f"{units.span(round(100 * one.value) for one in shares)} %"
        yield f"{share} of the step is {what} ({units.some_of(labels, MOST_LISTED)})"
    if not groups and explanations:
        yield NOTHING_LARGE


def reading(
    explanations: Sequence[Explanation],
    rows: Sequence[ConfigurationSummary] = (),
    notes: Sequence[str] = (),
) -> Iterator[str]:
    """How the tables are to be read, and what they leave out."""
    if explanations:
        present = {part for one in explanations for f in one.factors.factors for part in f.parts}
        defined = "; ".join(
            f"{part}, {MEANINGS[part].rstrip('.')}" for part in PARTS if part in present
        )
        yield (
            "efficiency is against the same implementation and backend at group size 1; absolute "
            "efficiency is against `single`, and the factors in a row multiply to it"
        )
        yield (
            f"factors are ratios of step times: {defined}; the typical one is the fastest of two, "
            "and the median of more"
        )
        sizes = sorted({one.factors.step_seconds.sample_size for one in explanations})
        if sizes[-1] > 1:
            yield (
                f"± is the 95 % t interval over {units.span(sizes, 'repetition')}, of factors on "
                "logarithms; every factor compares times of the same repetition"
            )
        if sizes[0] == 1:
            yield (
                "numbers without ± are of a single repetition (n = 1), which shows no noise, so "
                "there is no advice on them; measure with --repetitions 4"
            )
    if any(explanation.phases for explanation in explanations):
        yield (
            "phases are means over ranks of separate steps, which wait for the device after every "
            "phase; their communication is backward with synchronization − backward without"
        )
    yield from _special(explanations, rows, notes)


def _special(
    explanations: Sequence[Explanation],
    rows: Sequence[ConfigurationSummary],
    notes: Sequence[str],
) -> Iterable[str]:
    """Notes on these results."""
    yield from dict.fromkeys(note for explanation in explanations for note in explanation.notes)
    yield from reasons(rows)
    yield from dict.fromkeys(note for row in rows for note in row.notes)
    yield from notes


def _plain(explanation: Explanation, advice: Sequence[Advice]) -> dict[str, Any]:
    row, factors, slowest = explanation.row, explanation.factors, explanation.slowest_rank
    phases = explanation.phases
    return {
        "implementation": row.implementation,
        "backend": row.backend,
        "group_size": row.group_size,
        "nodes": list(row.nodes),
        "batch_size": row.batch_size,
        "repetitions": len(factors.repetitions),
        "efficiency": plain_estimate(row.efficiency),
        "absolute_efficiency": plain_estimate(factors.efficiency),
        "step_seconds": plain_estimate(factors.step_seconds),
        "factors": [
            {
                "parts": list(factor.parts),
                **(plain_estimate(factor.value) or {}),
                "share_of_step": plain_estimate(factor.share),
            }
            for factor in factors.factors
        ],
        "exposed_communication_seconds": plain_estimate(row["exposed_communication_seconds"]),
        "reduced_bytes_per_step": row["reduced_bytes_per_step"],
        "collectives_per_step": row["collectives_per_step"],
        "phases_seconds": phases
        and {one.name: plain_estimate(one.seconds) for one in phases.phases},
        "replica_phases_seconds": (
            phases and {name: plain_estimate(one) for name, one in phases.of_replicas.items()}
        )
        or None,
        "rank_skew": plain_estimate(row["rank_skew"]),
        "slowest_rank": slowest and {"rank": slowest.rank, "slowest_in": slowest.slowest_in},
        "stragglers": explanation.stragglers and asdict(explanation.stragglers),
        "advice": [
            {
                "kind": line.kind,
                "parts": list(line.parts),
                "share_of_step": line.share.value,
                "text": line.text,
            }
            for line in advice
        ],
        "notes": list(explanation.notes),
    }
