"""What should follow the same loss curve, and what is said when it does not."""

from __future__ import annotations

from typing import Any

import pytest

from dpbench.analysis.losses.loss_agreement import (
    agreement_notes,
    loss_agreements,
)
from dpbench.records.trial import TrialRecord
from dpbench.specs import WorkloadSpec
from tests.analysis.builders import loss_run

LOSSES = [2.0, 1.5, 1.2]
OTHER = [2.0, 1.65, 1.2]
ADAM = WorkloadSpec(architecture="mnist_cnn", dataset="digits", optimizer="adamw")


def strong(losses: list[float], group_size: int = 1, **changes: Any) -> TrialRecord:
    return loss_run(losses, scaling="strong", group_size=group_size, **changes)


def test_runs_that_agree_are_one_line() -> None:
    near = [loss * (1 + 1e-6) for loss in LOSSES]
    (found,) = loss_agreements([strong(LOSSES), strong(near, 2), strong(near, 2, backend="shm")])
    assert found.agrees
    assert found.labels == (
        "ddp/gloo ×1, batch 32",
        "ddp/gloo ×2, batch 32",
        "ddp/shm ×2, batch 32",
    )
    assert found.steps == 3
    assert found.max_relative_difference == pytest.approx(1e-6, rel=1e-3)
    assert agreement_notes([found]) == [
        "losses of configurations that train on the same samples agree to 1e-06 over their first "
        "3 timed steps at global batch 32, as expected"
    ]


def test_a_model_with_dropout_disagrees_between_group_sizes_only() -> None:
    runs = [strong(LOSSES), strong(OTHER, 2), strong(OTHER, 2, backend="shm")]
    across, within = loss_agreements(runs)
    assert (across.same_split, across.agrees) == (False, False)
    assert (within.same_split, within.agrees) == (True, True)
    assert within.labels == ("ddp/gloo ×2, batch 32", "ddp/shm ×2, batch 32")
    note = agreement_notes([across, within])[1]
    # 0.15 of a mean of (1.5 + 2 x 1.65) / 3 = 1.6.
    assert "differ by up to 9.4 % over their first 3 timed steps at global batch 32" in note
    assert "(tolerance 0.1 %): expected of dropout and batch normalization" in note


def test_disagreement_with_the_same_shards_is_an_error() -> None:
    torchs = strong(OTHER, 2, implementation="torch-ddp")
    (found,) = loss_agreements([strong(LOSSES, 2), torchs])
    assert (found.same_split, found.agrees) == (True, False)
    (note,) = agreement_notes([found])
    assert (
        "the losses of ddp/gloo ×2, batch 32; torch-ddp/gloo ×2, batch 32 differ by up to" in note
    )
    assert "a reduction is wrong" in note


@pytest.mark.parametrize(
    "changes",
    [
        {"implementation": "independent", "backend": "none"},
        {"implementation": "local-sgd"},
        {"workload": ADAM},
        {"warmup_steps": 3},
        {"batch_size": 64},
        {"accumulation_steps": 2},
    ],
)
def test_what_trains_differently_is_not_compared(changes: dict[str, Any]) -> None:
    assert loss_agreements([strong(LOSSES), strong(OTHER, 2, **changes)]) == ()
