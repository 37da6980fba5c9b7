"""What the law of `project` gets right on published series, and what its bands cover."""

from __future__ import annotations

from statistics import fmean, median

import pytest

from dpbench.analysis.projection.law import ACROSS_NODES, WITHIN_NODE, Band
from tools.law_errors import calibrate, conformal, errors


def test_bands_are_order_statistics() -> None:
    """Of 19 the smallest and the largest; of 39 the second ones from both ends."""
    assert conformal([place / 100 for place in range(-9, 10)]) == (-0.09, 0, 0.09)
    assert conformal([place / 100 for place in range(-19, 20)]) == (-0.18, 0, 0.18)


@pytest.mark.parametrize("across", [False, True])
def test_the_law_errs_less_than_keeping_the_last_efficiency(across: bool) -> None:
    """In the median of all series, and in the mean of each source that has many."""
    found = errors(across=across)
    law, kept = (error.log_ratio for error in found), (error.log_ratio_if_kept for error in found)
    assert median(map(abs, law)) < median(map(abs, kept))
    for source in () if across else ("Transformer-XL", "llm-foundry", "TensorFlow"):
        of_source = [error for error in found if source in error.source]
        kept_error = fmean(abs(error.log_ratio_if_kept) for error in of_source)
        assert fmean(abs(error.log_ratio) for error in of_source) < kept_error, source


@pytest.mark.parametrize(("band", "least"), [(WITHIN_NODE, 0.88), (ACROSS_NODES, 0.86)])
def test_bands_hold_on_series_that_they_were_not_calibrated_on(band: Band, least: float) -> None:
    assert band == calibrate(across=band is ACROSS_NODES), "run python -m tools.law_errors"
    assert least <= band.inside / band.predictions <= 0.94
