"""The loss over repetitions: medians and ranges by hand, on common points and between them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dpbench.analysis.loss_band import LossBand, loss_band
from dpbench.analysis.loss_curve import Floats, LossCurve, loss_curve
from tests.analysis.loss_records import loss_run


def curves(*runs: list[float]) -> list[LossCurve]:
    return [curve for run in runs if (curve := loss_curve(loss_run(run))) is not None]


def band_of(found: Sequence[LossCurve], along: Sequence[Floats]) -> LossBand:
    band = loss_band(found, along)
    assert band is not None
    return band


def test_on_common_points_it_is_the_median_and_the_range_of_the_curves_themselves() -> None:
    found = curves([3.0, 1.0], [5.0, 5.0], [4.0, 0.0])
    band = band_of(found, [curve.steps for curve in found])
    # Trailing means: 3, 2; 5, 5; 4, 2.
    assert band.at.tolist() == [1, 2]
    assert band.median.tolist() == [4, 2]
    assert band.low.tolist() == [3, 2]
    assert band.high.tolist() == [5, 5]
    assert band.repetitions == 3


def test_one_repetition_is_its_own_range() -> None:
    found = curves([3.0, 1.0, 2.0])
    band = band_of(found, [found[0].seconds])
    assert band.low.tolist() == band.median.tolist() == band.high.tolist()
    assert band.at == pytest.approx([0.1, 0.2, 0.3])


def test_along_seconds_it_covers_what_all_repetitions_reach() -> None:
    fast, slow = curves([4.0, 2.0], [4.0, 2.0])
    # Losses 4, 3 at 0.1, 0.2 s and at 0.15, 0.3 s.
    band = band_of([fast, slow], [fast.seconds, 1.5 * slow.seconds])
    assert band.at == pytest.approx([0.15, 0.2])
    assert band.low == pytest.approx([3.5, 3.0])
    assert band.high == pytest.approx([4.0, 4 - 1 / 3])
    assert band.median == pytest.approx([3.75, 3.5 - 1 / 6])


def test_where_one_ends_before_the_other_starts_there_is_no_band() -> None:
    one, other = curves([4.0, 2.0], [4.0, 2.0])
    # At 0.1 and 0.2 s, and at 0.3 and 0.6 s; then the second starts where the first ends.
    assert loss_band([one, other], [one.seconds, 3 * one.seconds]) is None
    assert loss_band([one, other], [one.seconds, one.seconds + 0.1]) is None
