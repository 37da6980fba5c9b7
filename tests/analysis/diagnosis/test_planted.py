"""A planted cause is the one that is named first, with a useful interval."""

from __future__ import annotations

import numpy as np
import pytest

from dpbench.analysis.diagnosis.advice import Advice, advise
from dpbench.analysis.diagnosis.explanation import explain
from dpbench.analysis.summary import summarize
from tests.analysis.diagnosis.planted import CAUSES, KINDS, Cause, Planted

SEEDS = range(12)
LARGEST_WIDTH = 0.3
"""Half-width ÷ effect; the median over seeds."""


def first_advice(cause: Cause, seed: int) -> Advice | None:
    planted = Planted(cause, seed)
    records = planted.records()
    explanations = explain(records, summarize(records))
    names = [explanation.row.implementation for explanation in explanations]
    found = advise(explanations)[names.index("ddp")]
    if found and cause in ("straggler", "loader"):
        assert f"rank {planted.slow_rank} (cpu)" in found[0].loss
    return next(iter(found), None)


@pytest.fixture(scope="module")
def found() -> dict[Cause, list[Advice | None]]:
    return {cause: [first_advice(cause, seed) for seed in SEEDS] for cause in CAUSES}


def test_of_sixty_planted_causes_at_least_54_are_named(
    found: dict[Cause, list[Advice | None]],
) -> None:
    right = sum(
        one is not None and one.kind == KINDS[cause] for cause in CAUSES for one in found[cause]
    )
    assert right >= 54


@pytest.mark.parametrize("cause", CAUSES)
def test_its_share_has_a_useful_interval(
    found: dict[Cause, list[Advice | None]], cause: Cause
) -> None:
    widths = [(one.share.half_width or 0) / one.share.value for one in found[cause] if one]
    assert float(np.median(widths)) <= LARGEST_WIDTH
