"""A planted cause is the one that is named first."""

from __future__ import annotations

from dpbench.analysis.diagnosis.advice import explain_rows
from dpbench.analysis.diagnosis.explanation import Advice
from dpbench.analysis.rows import summarize
from tests.analysis.diagnosis.planted import CAUSES, KINDS, Cause, Planted

SEEDS = range(12)


def first_advice(cause: Cause, seed: int) -> Advice | None:
    planted = Planted(cause, seed)
    records = planted.records()
    explanations = explain_rows(summarize(records))
    (found,) = (one.advice for one in explanations if one.row.implementation == "ddp")
    if found and cause in ("straggler", "loader"):
        assert f"rank {planted.slow_rank} (cpu)" in found[0].loss
    return next(iter(found), None)


def test_nine_of_ten_planted_causes_are_named() -> None:
    found = [(cause, first_advice(cause, seed)) for cause in CAUSES for seed in SEEDS]
    named = sum(one is not None and one.kind == KINDS[cause] for cause, one in found)
    assert named >= 0.9 * len(found)
