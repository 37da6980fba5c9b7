"""Text, JSON and CSV of `dpbench compare`: A is the baseline, B the candidate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from dpbench import units
from dpbench.analysis.comparisons.comparison import Comparison
from dpbench.analysis.comparisons.matching import Matched
from dpbench.analysis.estimate import FEWEST_PAIRS
from dpbench.analysis.metric import Metric, Plain
from dpbench.report.answer import json_text, with_ends
from dpbench.report.formats import csv_text
from dpbench.report.numbers import or_missing, plus_minus, quantity, sample_sizes
from dpbench.report.table import MISSING, text_table
from dpbench.report.tables import RenderedTable
from dpbench.report.terminal import (
    DEFAULT,
    below,
    check_format,
    filled,
    folded_or_fewer,
    write_table,
)


def render(
    comparisons: Sequence[Comparison],
    matched: Matched,
    metric: Metric,
    *,
    within: float,
    format: str | None = None,
    notes: Sequence[str] = (),
) -> RenderedTable:
    """A table, a sentence that counts its outcomes, and what has to stand below.

    Raises UnknownName for an unknown format; JSON and CSV are those of `to_json` and `to_csv`.
    """
    name = check_format(format or DEFAULT)
    rates = {row.unit for row in comparisons if row.baseline or row.candidate}
    rate = f" ({rates.pop()})" if len(rates) == 1 and min(rates).endswith("/s") else ""
    ratio = "Slowdown" if metric.is_speed else "Worsening"
    headers = ("Configuration", f"A{rate}", f"B{rate}", ratio, "p", "n", "B is")
    lines = [
        (
            row.label,
            quantity(row.baseline, header=rate),
            quantity(row.candidate, header=rate),
            or_missing(row.slowdown, plus_minus),
            _p_value(row.p_value_corrected),
            sample_sizes(row.repetitions) if row.slowdown else MISSING,
            outcome_words(row, within),
        )
        for row in comparisons
    ]
    keys = ("Configuration", "A", "B", ratio, "p", "n", "B is")
    found = text_table(headers, lines, words=("Configuration", "B is"), keys=keys)
    head = (
        f"A (baseline):  {matched.baseline.label}",
        f"B (candidate): {matched.candidate.label}",
        f"Metric:        {metric.key}",
    )
    sentence = summary(comparisons, metric, within)
    shown, fewer = found, list[str]()
    if name == DEFAULT:
        shown, fewer = folded_or_fewer(
            found, ("B is", "Configuration"), [("p",), ("n",), ("A", "B")]
        )
    columns = {column.key for column in shown.columns}
    reading = _reading(comparisons, metric, columns)
    said = (*reading, *left_out(comparisons, matched, metric), *notes, *fewer)
    if name == DEFAULT:
        table = write_table(shown)
        paragraphs = [map(filled, head), [table], [filled(sentence)], below(said, name)]
    elif name == "markdown":
        table = write_table(found, name)
        paragraphs = [below(head, name), [table], below([sentence], name), below(said, name)]
    else:
        text = f"{write_table(found, name)}\n"
        return RenderedTable(text=text, notes_aside=(*head, sentence, *said))
    return RenderedTable(text="\n\n".join(map("\n".join, paragraphs)) + "\n")


def _p_value(value: float | None) -> str:
    return MISSING if value is None else "<0.001" if value < 0.001 else f"{value:.3f}"


def to_json(comparisons: Sequence[Comparison], matched: Matched, notes: Sequence[str] = ()) -> str:
    """An object with the labels of both sides, the rows, and what has no partner."""
    content = {
        "baseline": matched.baseline.label,
        "candidate": matched.candidate.label,
        "rows": [plain(row) for row in comparisons],
        "only_in_baseline": list(matched.only_in_baseline),
        "only_in_candidate": list(matched.only_in_candidate),
        "notes": list(notes),
    }
    return json_text(content)


def to_csv(comparisons: Sequence[Comparison]) -> str:
    """A line for each comparison, under the keys of the JSON rows."""
    import pandas as pd

    return csv_text(pd.DataFrame([plain(row) for row in comparisons], dtype=object))


def plain(row: Comparison) -> dict[str, Plain]:
    """One comparison; the keys never change meaning, None is what there were too few runs for."""
    return {
        "configuration": row.label,
        "metric": row.metric,
        "unit": row.unit,
        **with_ends("baseline", row.baseline),
        **with_ends("candidate", row.candidate),
        **with_ends("slowdown", row.slowdown),
        "p_value": row.p_value,
        "p_value_corrected": row.p_value_corrected,
        "repetitions": row.slowdown.sample_size if row.slowdown else None,
        "baseline_repetitions": row.repetitions[0],
        "candidate_repetitions": row.repetitions[1],
        "paired": row.paired,
        "minimum_detectable_effect": row.minimum_detectable_effect,
        "outcome": row.outcome,
        "reason": row.reason,
    }


def summary(comparisons: Sequence[Comparison], metric: Metric, within: float) -> str:
    """Writes "B is faster in 3 and slower in 1 of 8 rows; 4 are inconclusive."."""
    counts = Counter[str](row.outcome for row in comparisons)
    changed = ("faster", "slower") if metric.is_speed else ("better", "worse")
    parts = [f"{word} in {counts[word]}" for word in changed if counts[word]]
    if counts["same"]:
        parts.append(f"the same within {units.percent(within, 3)} in {counts['same']}")
    total = units.counted(len(comparisons), "row")
    undecided = counts["inconclusive"]
    verb = "is" if undecided == 1 else "are"
    if not parts:
        which = f"{undecided} of {total}" if len(comparisons) > 1 else "the only row"
        return f"{which} {verb} inconclusive.".capitalize()
    first = f"{', '.join(parts[:-1])} and " if len(parts) > 1 else ""
    rest = f"; {undecided} {verb} inconclusive" if undecided else ""
    return f"B is {first}{parts[-1]} of {total}{rest}."


def left_out(comparisons: Sequence[Comparison], matched: Matched, metric: Metric) -> Iterable[str]:
    """Configurations on one side only, and those without such a metric."""
    for name, labels in (("A", matched.only_in_baseline), ("B", matched.only_in_candidate)):
        if labels:
            yield f"only in {name}, not compared: {'; '.join(labels)}"
    shown = {row.label for row in comparisons}
    if missing := [pair.label for pair in matched.pairs if pair.label not in shown]:
        yield f"{metric.key} was measured on neither side: {'; '.join(missing)}"


def outcome_words(row: Comparison, within: float) -> str:
    """The result of a row, and why it says no more."""
    if row.outcome == "same":
        return f"the same within {units.percent(within, 3)}"
    if row.reason is not None:
        return f"{row.outcome}: {row.reason}"
    if row.outcome == "inconclusive" and row.minimum_detectable_effect is not None:
        return f"inconclusive (detects {units.percent(row.minimum_detectable_effect)})"
    return row.outcome


def _reading(
    comparisons: Sequence[Comparison], metric: Metric, columns: Collection[str]
) -> Iterable[str]:
    """How the numbers in these columns of the table are to be read."""
    first, second = ("A", "B") if metric.higher_is_better else ("B", "A")
    ratio = f"{first} ÷ {second}"
    if metric.key == "images_per_second":
        ratio += ", the ratio of the times per sample"
    yield f"{'slowdown' if metric.is_speed else 'worsening'} is {ratio}; above 1, B is worse"
    if metric.scale == "largest":
        yield "A and B are means over repetitions; dpbench report shows the largest"
    measured = [row for row in comparisons if row.slowdown and row.slowdown.interval]
    if measured:
        paired = [row.paired for row in measured]
        how = "t within each repetition" if all(paired) else "Welch's t"
        if any(paired) and not all(paired):
            how = f"t, within each repetition where {FEWEST_PAIRS} or more are on both sides"
        parts = [f"± is the 95 % interval over repetitions ({how}, on logarithms)"]
        if "n" in columns:
            differ = any(len({*r.repetitions}) > 1 for r in comparisons if r.slowdown)
            parts.append(f"n: repetitions of each side{' (A, B)' if differ else ''}")
        if "p" in columns:
            parts.append("p-values are Holm-corrected for the number of rows")
        yield "; ".join(parts)
    if any(row.outcome == "inconclusive" and row.change is not None for row in measured):
        yield (
            "inconclusive: add --repetitions; these would detect the slowdown in parentheses in "
            "4 of 5 cases"
        )
