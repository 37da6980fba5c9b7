"""Text and JSON of `dpbench explain`: factors, steps, and a line for each large loss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from dpbench import units
from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.diagnosis.advice import NOTHING_LARGE, Advice
from dpbench.analysis.diagnosis.explanation import Explanation
from dpbench.analysis.diagnosis.factors import Factor
from dpbench.analysis.fields import ReadField
from dpbench.report.answer import Answer, bullets, plain_estimate
from dpbench.report.explanation_fields import (
    FACTOR_FIELDS,
    PHASE_FIELDS,
    STEP_COST_FIELDS,
)
from dpbench.report.footnotes import reasons
from dpbench.report.numbers import percentage
from dpbench.report.table import MISSING, Table
from dpbench.report.terminal import folded, write_table
from dpbench.report.values import cell, table_of

MORE = "steps, phases, and how to read the numbers: --verbose"
MOST_LISTED = 8
"""Configurations that a line of advice names; the rest are counted and stand in the table."""


def answer(
    explanations: Sequence[Explanation],
    advice: Sequence[Sequence[Advice]],
    *,
    rows: Sequence[ConfigurationSummary] = (),
    first: Sequence[str] = (),
    hints: Sequence[str] = (),
    notes: Sequence[str] = (),
    verbose: bool = True,
) -> Answer:
    """Tables (efficiency and its factors; the step; its phases), advice, and how to read them; the
    first table and the advice alone unless `verbose`.

    `rows` are all that were asked for: those without a speed are listed with their reasons; `first`
    is what forbids to trust the figures, `hints` advice that no factor tells. The data is an object
    with "configurations", one for each explanation, "notes" and "hints".
    """
    return Answer(
        paragraphs=(
            *([bullets(first)] if first else []),
            *map(_written, islice(tables(explanations), None if verbose else 1)),
            bullets((*advice_lines(explanations, advice), *hints)),
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
            "hints": list(hints),
        },
    )


def tables(explanations: Sequence[Explanation]) -> Iterable[Table]:
    """Efficiency and its factors; the step; its phases, where they were measured."""
    phased = [explanation for explanation in explanations if explanation.phases]
    for key, caption, columns, explained in (
        ("factors", "Efficiency and the factors that multiply to it", FACTOR_FIELDS, explanations),
        ("steps", "A step: communication, traffic, skew", STEP_COST_FIELDS, explanations),
        ("phases", "Phases of a step", PHASE_FIELDS, phased),
    ):
        if explained:
            yield table_of(_telling(explained, columns), explained, key=key, caption=caption)


def _telling(
    explanations: Sequence[Explanation], columns: Sequence[ReadField[Explanation]]
) -> tuple[ReadField[Explanation], ...]:
    """Drops columns that say nothing: nowhere measured, or 1 by definition everywhere."""
    first, *rest = columns
    return (
        first,
        *(c for c in rest if any(cell(c, e) not in (MISSING, "1") for e in explanations)),
    )


def _written(table: Table) -> str:
    return write_table(folded(table.with_wrapped_headers))


def advice_lines(
    explanations: Sequence[Explanation], advice: Sequence[Sequence[Advice]]
) -> Iterable[str]:
    """A line for each advice, with all configurations that it holds of."""
    groups: dict[str, list[tuple[Explanation, Factor]]] = {}
    for explanation, found in zip(explanations, advice, strict=True):
        for line in found:
            groups.setdefault(line.text, []).append((explanation, line.factor))
    for text, losses in sorted(groups.items(), key=lambda group: -_largest(group[1])):
        labels = [explanation.row.label for explanation, _ in losses]
        listed = units.some_of(labels, MOST_LISTED)
        yield f"{_shares([factor for _, factor in losses])} of the step is {text} ({listed})"
    if not groups and explanations:
        yield NOTHING_LARGE


def _shares(factors: Sequence[Factor]) -> str:
    """Share of one row with its interval; of several rows, the range."""
    if len(factors) == 1:
        return percentage(factors[0].share)
    return f"{units.span(round(100 * factor.share.value) for factor in factors)} %"


def _largest(losses: Sequence[tuple[Explanation, Factor]]) -> float:
    return max(factor.share.value for _, factor in losses)


def reading(
    explanations: Sequence[Explanation],
    rows: Sequence[ConfigurationSummary] = (),
    notes: Sequence[str] = (),
) -> Iterable[str]:
    """How the tables are to be read, and what they leave out."""
    if explanations:
        yield (
            "efficiency is against the same implementation and backend at group size 1; absolute "
            "efficiency is against `single`, and the factors in a row multiply to it"
        )
        yield f"factors are ratios of step times: {'; '.join(_definitions(explanations))}"
        yield from _intervals(explanations)
    if any(explanation.phases for explanation in explanations):
        yield (
            "phases are means over ranks of steps apart from the timed ones, which wait for the "
            "device after every phase; their communication is backward with synchronization "
            "- backward without"
        )
    if any(explanation.phases and explanation.phases.of_replicas for explanation in explanations):
        yield (
            "scatter, replicate, compute, gather and reduce are parts of forward and backward in "
            "implementations that drive all replicas from one process"
        )
    yield from _special(explanations, rows, notes)


def _special(
    explanations: Sequence[Explanation],
    rows: Sequence[ConfigurationSummary],
    notes: Sequence[str],
) -> Iterable[str]:
    """What holds of these results, and not of every explanation."""
    yield from dict.fromkeys(note for explanation in explanations for note in explanation.notes)
    yield from reasons(rows)
    yield from dict.fromkeys(note for row in rows for note in row.notes)
    yield from notes


def _definitions(explanations: Sequence[Explanation]) -> Iterable[str]:
    contended = "contention, `single` ÷ the mean of as many `independent` copies"
    if any(explanation.trial.scaling == "strong" for explanation in explanations):
        yield "granularity, `single` at the global batch ÷ at all shards one after the other"
        contended += " of the same shards"
    yield contended
    yield "wrapper, those ÷ the mean rank without synchronization"
    yield "balance, the mean ÷ the slowest rank"
    yield "stragglers, that rank ÷ the mean over steps of whichever rank is slowest in each"
    yield "communication, that ÷ the step with synchronization"
    if any(explanation.row.group_size == 1 for explanation in explanations):
        yield "at group size 1 only the wrapper, `single` ÷ the step of the wrapped model"


def _intervals(explanations: Sequence[Explanation]) -> Iterable[str]:
    sizes = sorted({explanation.factors.step_seconds.sample_size for explanation in explanations})
    if sizes[-1] > 1:
        yield (
            f"± is the 95 % t interval over {units.span(sizes, 'repetition')}, of factors on "
            "logarithms; every factor compares times of the same repetition"
        )
    if sizes[0] == 1:
        yield (
            "numbers without ± are of a single repetition (n = 1): they cannot be distinguished "
            "from noise, so no advice is given on them; measure with --repetitions 3 or more"
        )


def _replica_phases(explanation: Explanation) -> dict[str, Any] | None:
    found = explanation.phases.of_replicas if explanation.phases else {}
    return {name: plain_estimate(one) for name, one in found.items()} or None


def _plain(explanation: Explanation, advice: Sequence[Advice]) -> dict[str, Any]:
    row, factors, slowest = explanation.row, explanation.factors, explanation.slowest_rank
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
        "phases_seconds": explanation.phases
        and {one.name: plain_estimate(one.seconds) for one in explanation.phases.phases},
        "replica_phases_seconds": _replica_phases(explanation),
        "rank_skew": plain_estimate(row["rank_skew"]),
        "slowest_rank": slowest and {"rank": slowest.rank, "slowest_in": slowest.slowest_in},
        "stragglers": explanation.stragglers and asdict(explanation.stragglers),
        "advice": [
            {
                "kind": line.kind,
                "parts": list(line.factor.parts),
                "share_of_step": line.share.value,
                "text": line.text,
            }
            for line in advice
        ],
        "notes": list(explanation.notes),
    }
