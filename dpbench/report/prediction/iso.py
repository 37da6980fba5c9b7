"""Text and JSON of `dpbench iso`: the batch sizes that keep an efficiency."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dpbench import units
from dpbench.analysis.laws.band import CONFIDENCE
from dpbench.analysis.projection.iso import Family, IsoRow
from dpbench.report.answer import Answer
from dpbench.report.prediction.answer import Brief, kind_meanings, predicted_answer, summary_table
from dpbench.report.table import MISSING, Table, text_table


@dataclass(frozen=True, kw_only=True, slots=True)
class IsoAnswer:
    """One implementation on one backend."""

    family: Family
    rows: tuple[IsoRow, ...]
    assumptions: tuple[tuple[str, tuple[str, ...]], ...]
    """Assumptions for each traced batch size: its label and sentences."""

    @property
    def sample_size(self) -> int:
        """Repetitions that were traced, of the batch size with the fewest."""
        return min(len(one.inputs.traces) for one in self.family.members)


def answer(
    answers: Sequence[IsoAnswer],
    efficiency: float,
    *,
    premise: str | None = None,
    notes: Sequence[str] = (),
    verbose: bool = True,
) -> Answer:
    """A table each, and how to read them; as data, batches are samples per replica and
    micro-step."""
    return predicted_answer(
        [block for one in answers for block in _blocks(one, efficiency)],
        reading=_reading(answers, efficiency),
        assumptions=[pair for one in answers for pair in one.assumptions],
        data={"efficiency": efficiency, "series": [_series(one) for one in answers]},
        premise=premise,
        notes=notes,
        brief=None if verbose else _brief(answers, efficiency),
    )


def _brief(answers: Sequence[IsoAnswer], efficiency: float) -> Brief:
    rows = [[one.family.label, *_cells(row)] for one in answers for row in one.rows]
    headers = ("Series", "Replicas", "Batch per replica", "Kind")
    kept = units.exact_percent(efficiency)
    return Brief(
        blocks=[
            f"smallest batches that keep {kept} efficiency",
            summary_table(rows, headers, ("Series", "Kind")),
        ],
        reading=[
            kind_meanings(row.kind for one in answers for row in one.rows),
            *_reasons(answers),
        ],
    )


def _blocks(one: IsoAnswer, efficiency: float) -> Iterable[str | Table]:
    yield (
        f"{one.family.label}, on {one.family.network}: {units.exact_percent(efficiency)} "
        f"efficiency (n = {one.sample_size:,})"
    )
    headers = ("Replicas", "Batch per replica", "Kind")
    yield text_table(headers, map(_cells, one.rows), words=("Kind",))


def _reading(answers: Sequence[IsoAnswer], efficiency: float) -> Iterable[str]:
    yield kind_meanings(row.kind for one in answers for row in one.rows)
    yield (
        "the smallest number of samples per replica and micro-step, rounded up, whose step loses "
        "no more to communication, stragglers and contention; in brackets where the "
        f"{units.fixed_percent(CONFIDENCE)} band of the efficiency crosses ({MISSING}: its lower "
        "end never does); n: repetitions traced"
    )
    for sizes in dict.fromkeys(one.family.batch_sizes for one in answers):
        traced = ", ".join(map(str, sizes))
        yield (
            f"the step is a line through the batches traced, {traced}; only the optimizer's part "
            "is constant"
        )
    yield from _reasons(answers)


def _series(one: IsoAnswer) -> dict[str, Any]:
    return {
        "series": one.family.label,
        "network": one.family.network,
        "traced_batch_sizes": list(one.family.batch_sizes),
        "rows": [_plain(row) for row in one.rows],
        "sample_size": one.sample_size,
        "assumptions": list(dict.fromkeys(line for _, lines in one.assumptions for line in lines)),
    }


def _reasons(answers: Sequence[IsoAnswer]) -> Iterable[str]:
    """Why there is no batch; of group sizes with the same reason once."""
    for one in answers:
        sizes: dict[str, list[str]] = {}
        for row in one.rows:
            if row.reason:
                sizes.setdefault(row.reason, []).append(f"{row.group_size:,}")
        for reason, those in sizes.items():
            yield f"{one.family.label}, {', '.join(those)} replicas: {reason}"


def _cells(row: IsoRow) -> tuple[str, str, str]:
    batch = MISSING if row.kind == "refused" else "none"
    if row.batch_size is not None:
        low, high = (MISSING if end is None else f"{end:,}" for end in (row.low, row.high))
        batch = f"{row.batch_size:,} ({low} to {high})"
    return f"{row.group_size:,}", batch, row.kind


def _plain(row: IsoRow) -> dict[str, Any]:
    return {
        "group_size": row.group_size,
        "batch_size": row.batch_size,
        "low": row.low,
        "high": row.high,
        "unit": "samples per replica",
        "kind": row.kind,
        "reason": row.reason,
    }
