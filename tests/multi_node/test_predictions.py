"""A step across a slow link is what the simulation makes of one rank and the link."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.multi_node.prediction import collective, predictions, trial
from tests.multi_node.rank_program import Plan

TOLERANCE = 0.15
ATTEMPTS = 3
"""A machine that others keep busy now and then is not what was predicted for."""

PLAN = Plan(
    trials=tuple(
        replace(trial("mlp", "ddp", group_size, 32), warmup_steps=2, timed_steps=5)
        for group_size in (1, 2)
    ),
    collectives=(
        collective((4, 262_144, 1_048_576, 4_194_304), overlap_sizes=(262_144,), samples=5),
    ),
)


@pytest.mark.slow
@pytest.mark.alone
def test_a_step_at_200_megabits_per_second_is_predicted() -> None:
    for _ in range(ATTEMPTS):
        (found,) = predictions(200e6, PLAN)
        errors = abs(found.error_from_curve), abs(found.error_from_rate)
        if max(errors) <= TOLERANCE:
            return
    pytest.fail(str(found))
