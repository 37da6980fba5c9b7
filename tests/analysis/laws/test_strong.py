"""Strong scaling: a replica's share of the batch, and the rest."""

from __future__ import annotations

import numpy as np
import pytest

from dpbench.analysis.laws.fit import fit
from dpbench.analysis.laws.series import LoneStep, Series
from dpbench.errors import UsageError
from tests.analysis.laws.series import log_mean, series

LAUNCH, PER_SAMPLE, BATCH = 0.002, 0.001, 64


def seconds(n: int) -> float:
    return LAUNCH + PER_SAMPLE * BATCH / n + 0.003 * (n - 1) / n


def strong(*batches: int) -> Series:
    lone = (LoneStep(batch_size=b, step_seconds=log_mean(LAUNCH + PER_SAMPLE * b)) for b in batches)
    return series(
        seconds,
        (1, 2, 4),
        scaling="strong",
        batch_size=BATCH,
        items_per_step=BATCH,
        lone_steps=tuple(lone),
    )


def test_work_and_overhead_are_told_apart() -> None:
    found = fit(strong(32, 64, 128))
    assert [term.name for term in found.terms] == ["launch", "share", "ring", "log"]
    expected = [LAUNCH, PER_SAMPLE * BATCH, 0.003, 0.0]
    assert np.abs(found.coefficients - expected).max() < 1e-9
    throughput = found.predict(16).throughput
    assert throughput is not None
    assert throughput.value == pytest.approx(BATCH / seconds(16))


@pytest.mark.parametrize("batches", [(), (64,)])
def test_without_two_batches_of_one_replica_there_is_no_fit(batches: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="the step of one replica at two batch sizes"):
        fit(strong(*batches))


def test_a_batch_is_not_shared_among_more_replicas_than_it_has_samples() -> None:
    found = fit(series(seconds, (1, 2, 4, 32), scaling="strong", batch_size=BATCH,
                       items_per_step=BATCH, lone_steps=strong(32, 64).lone_steps))  # fmt: skip
    assert found.predict(64).kind == "extrapolated"
    assert "cannot share a batch of 64" in (found.predict(65).reason or "")
