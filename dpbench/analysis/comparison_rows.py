"""Comparisons as plain values under stable keys: what JSON and CSV hold."""

from __future__ import annotations

from dpbench.analysis.comparison import Comparison
from dpbench.analysis.rows import with_ends

Plain = str | int | float | bool | None


def to_row(row: Comparison) -> dict[str, Plain]:
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
