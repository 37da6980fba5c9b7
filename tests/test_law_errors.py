"""What the law of `project` gets right on published series, and what its bands cover."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

import pytest

from dpbench.analysis.projection.law import ACROSS_NODES, WITHIN_NODE, Band
from tools.law_errors import Error, calibrated, conformal, errors, published_curves

MANY = 20
"""Predictions of one source from which its median says something."""
TENSORFLOW = "TensorFlow 1.x performance benchmarks page"


def medians(found: Sequence[Error]) -> tuple[float, float]:
    """Median sizes of the errors: of the law, and of keeping the last efficiency."""
    return (
        median(abs(error.log_ratio) for error in found),
        median(abs(error.log_ratio_if_kept) for error in found),
    )


def test_bands_are_order_statistics() -> None:
    """Of 19 the smallest and the largest; of 39 the second ones from both ends."""
    assert conformal([place / 100 for place in range(-9, 10)]) == (-0.09, 0, 0.09)
    assert conformal([place / 100 for place in range(-19, 20)]) == (-0.18, 0, 0.18)


@pytest.mark.parametrize("across", [False, True])
def test_the_law_errs_less_than_keeping_the_last_efficiency(across: bool) -> None:
    law, kept = medians(errors(across=across))
    assert law < kept


def test_the_law_errs_less_in_each_source_with_many_series_but_one() -> None:
    """Most series of TensorFlow's page are flat, and keep is nearer in the median; those that are
    not (VGG16, AlexNet) make its mean error the larger one."""
    sources = dict.fromkeys(curve.source.split(",")[0] for curve in published_curves())
    within = errors(across=False)
    groups = {name: [e for e in within if name in e.curve.source] for name in sources}
    many = {source: found for source, found in groups.items() if len(found) >= MANY}
    assert len(many) == 3
    for source, found in many.items():
        law, kept = medians(found)
        if source == TENSORFLOW:
            law, kept = (
                fmean(abs(error.log_ratio) for error in found),
                fmean(abs(error.log_ratio_if_kept) for error in found),
            )
        assert law < kept, source


@pytest.mark.parametrize(("band", "least"), [(WITHIN_NODE, 0.88), (ACROSS_NODES, 0.86)])
def test_bands_hold_on_series_that_they_were_not_calibrated_on(band: Band, least: float) -> None:
    assert band == calibrated(across=band is ACROSS_NODES), "run python -m tools.law_errors"
    assert least <= band.inside / band.predictions <= 0.94
