"""`dpbench compare`: a table for each metric; A is the baseline, B the candidate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dpbench import units
from dpbench.analysis.comparisons.comparison import ComparedRow, Comparison
from dpbench.analysis.estimate import MIN_PAIRS, Estimate
from dpbench.analysis.formatting import percent, plus_minus, rate_with_unit
from dpbench.analysis.metrics import PlainValue
from dpbench.messages import one_line
from dpbench.report.answer import Answer, Paragraph, with_ends
from dpbench.report.table import MISSING, Column, Table, or_missing


def comparison_answer(compared: Comparison, *, within: float) -> Answer:
    """A table of each metric, a count of its outcomes, and how to read it.

    As data, an object with the labels of both sides, the rows and the notes.
    """
    different = [f"environments differ: {difference}" for difference in compared.differences]
    notes = [*compared.notes, *different]
    paragraphs: list[Paragraph] = []
    for name, rows in compared.rows.items():
        measured = [row for row in rows if any(row.repetitions)] or rows
        others = [row.label for row in rows if row not in measured]
        paragraphs += [
            f"A (baseline):  {compared.baseline.label}\n"
            f"B (candidate): {compared.candidate.label}\n"
            f"Metric:        {name}",
            _comparison_table(measured, within),
            _summary(measured, within),
            [
                *_reading(measured),
                *([f"{name} was measured on neither side: {'; '.join(others)}"] if others else []),
                *notes,
            ],
        ]
    return Answer(
        paragraphs=tuple(paragraphs),
        data={
            "baseline": compared.baseline.label,
            "candidate": compared.candidate.label,
            "rows": [plain_comparison(row) for rows in compared.rows.values() for row in rows],
            "notes": notes,
        },
    )


def _comparison_table(rows: Sequence[ComparedRow], within: float) -> Table:
    """A row for each configuration; p, n and both values leave a narrow terminal."""
    p_values = [row.p_value_corrected for row in rows]
    return Table(
        columns=(
            Column("Configuration", [row.label for row in rows], is_text=True),
            *side_columns(rows, ("A", "B")),
            Column(
                "Speedup" if rows[0].metric.is_speed else "B ÷ A",
                [or_missing(_ratio(row), plus_minus) for row in rows],
            ),
            Column(
                "p",
                [MISSING if p is None else "<0.001" if p < 0.001 else f"{p:.3f}" for p in p_values],
                importance=1,
            ),
            Column("n", [*map(sample_sizes, rows)], importance=2),
            Column("B is", [_outcome_words(row, within) for row in rows], is_text=True),
        )
    )


def _ratio(row: ComparedRow) -> Estimate | None:
    """The speed of B ÷ that of A, so that above 1 B is faster; B ÷ A of what is no speed."""
    if row.change is None:
        return None
    ratio = row.change.estimate
    is_cost = not row.metric.is_speed and row.metric.better == "lower"
    return ratio if is_cost else ratio.mapped(lambda value: 1 / value, unit=ratio.unit)


def side_columns(
    rows: Sequence[ComparedRow], names: Sequence[str], *, gap: str = " "
) -> Iterator[Column]:
    """A column for the baseline and one for the candidate. A rate in which all rows are measured,
    such as images/s, stands in both headers, after a `gap`."""
    units_used = {row.metric.unit for row in rows if row.baseline or row.candidate}
    is_rate = len(units_used) == 1 and min(units_used).endswith("/s")
    write = rate_with_unit if len(units_used) > 1 else rows[0].metric.write
    sides = [row.baseline for row in rows], [row.candidate for row in rows]
    for name, averages in zip(names, sides, strict=True):
        header = f"{name}{gap}({one_line(min(units_used))})" if is_rate else name
        yield Column(header, [or_missing(average, write) for average in averages], importance=3)


def sample_sizes(row: ComparedRow) -> str:
    """Writes "5"; "5, 2" where baseline and candidate differ."""
    return ", ".join(map(str, dict.fromkeys(row.repetitions)))


def plain_comparison(row: ComparedRow) -> dict[str, PlainValue]:
    """One comparison; the keys never change meaning, None is what there were too few runs for."""
    return {
        "configuration": row.label,
        "metric": row.metric.key,
        "unit": row.metric.unit,
        **with_ends("baseline", row.baseline),
        **with_ends("candidate", row.candidate),
        **with_ends("slowdown", row.change.estimate if row.change else None),
        "p_value": row.p_value,
        "p_value_corrected": row.p_value_corrected,
        "repetitions": min(row.repetitions) if row.change else None,
        "baseline_repetitions": row.repetitions[0],
        "candidate_repetitions": row.repetitions[1],
        "paired": row.change is not None and row.change.is_paired,
        "outcome": row.outcome,
        "reason": row.reason,
    }


def _summary(rows: Sequence[ComparedRow], within: float) -> str:
    """Writes "B is faster in 3 of 8 rows (1.42–1.90 ×) and slower in 1 (0.81 ×); 4 are
    inconclusive."; of a single row "B is 1.25 ± 0.03 × as fast as A."."""
    undecided = sum(row.outcome == "inconclusive" for row in rows)
    verb = "is" if undecided == 1 else "are"
    total = units.counted(len(rows), "row")
    if undecided == len(rows):
        which = f"{undecided} of {total}" if len(rows) > 1 else "the only row"
        return f"{which} {verb} inconclusive.".capitalize()
    parts: list[str] = []
    for outcome in ("faster", "slower", "better", "worse", "same"):
        changed = [row for row in rows if row.outcome == outcome]
        ratios = [*filter(None, (_ratio(row) for row in changed))]
        if not ratios:
            continue
        what = _outcome_words(changed[0], within)
        if len(rows) == 1:
            is_changed = rows[0].metric.is_speed and outcome != "same"
            return f"B is {f'{plus_minus(ratios[0])} × as fast as A' if is_changed else what}."
        both = dict.fromkeys(f"{end(ratio.value for ratio in ratios):.2f}" for end in (min, max))
        ends = "" if outcome == "same" else f" ({'–'.join(both)} ×)"
        parts.append(f"{what} in {len(changed)}{'' if parts else f' of {total}'}{ends}")
    first = f"{', '.join(parts[:-1])} and " if len(parts) > 1 else ""
    rest = f"; {undecided} {verb} inconclusive" if undecided else ""
    return f"B is {first}{parts[-1]}{rest}."


def _outcome_words(row: ComparedRow, within: float) -> str:
    """The result of a row, and why it says no more."""
    if row.outcome == "same":
        return f"the same within {percent(within, 3)}"
    return row.outcome if row.reason is None else f"{row.outcome}: {row.reason}"


def _reading(rows: Sequence[ComparedRow]) -> Iterable[str]:
    """How the numbers of the table are to be read."""
    metric = rows[0].metric
    if metric.is_speed:
        ratio = "B ÷ A" if metric.better == "higher" else "A ÷ B"
        yield f"speedup is {ratio}: 1.25 means that B is 1.25 × as fast as A"
    tested = [row.change for row in rows if row.change and row.change.is_tested]
    if tested:
        paired = [test.is_paired for test in tested]
        how = "t within each repetition" if all(paired) else "Welch's t"
        if any(paired) and not all(paired):
            how = f"t, within each repetition where {MIN_PAIRS} or more are on both sides"
        differ = any(len({*row.repetitions}) > 1 for row in rows if row.change)
        yield (
            f"± is the 95 % interval over repetitions ({how}, on logarithms); n: repetitions of "
            f"each side{' (A, B)' if differ else ''}; p-values are Holm-corrected for the number "
            "of rows"
        )
    if any(row.outcome == "inconclusive" and row.p_value is not None for row in rows):
        yield "inconclusive: add --repetitions"
