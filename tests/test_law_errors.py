"""What the law of `project` gets right on published series, and what its bands cover."""

from __future__ import annotations

from statistics import fmean, median

import pytest

from dpbench.analysis.projection.law import ACROSS_NODES, WITHIN_NODE, Band
from tools.law_errors import calibrated, conformal, errors


def test_bands_are_order_statistics() -> None:
    """Of 19 the smallest and the largest; of 39 the second ones from both ends."""
    assert conformal([place / 100 for place in range(-9, 10)]) == (-0.09, 0, 0.09)
    assert conformal([place / 100 for place in range(-19, 20)]) == (-0.18, 0, 0.18)


@pytest.mark.parametrize("across", [False, True])
def test_the_law_errs_less_than_keeping_the_last_efficiency(across: bool) -> None:
    found = errors(across=across)
    law, kept = (error.log_ratio for error in found), (error.log_ratio_if_kept for error in found)
    assert median(map(abs, law)) < median(map(abs, kept))


@pytest.mark.parametrize("source", ["Transformer-XL", "llm-foundry", "TensorFlow"])
def test_the_law_errs_less_in_the_mean_of_each_source_with_many_series(source: str) -> None:
    found = [error for error in errors(across=False) if source in error.curve.source]
    law, kept = (error.log_ratio for error in found), (error.log_ratio_if_kept for error in found)
    assert fmean(map(abs, law)) < fmean(map(abs, kept))


@pytest.mark.parametrize(("band", "least"), [(WITHIN_NODE, 0.88), (ACROSS_NODES, 0.86)])
def test_bands_hold_on_series_that_they_were_not_calibrated_on(band: Band, least: float) -> None:
    assert band == calibrated(across=band is ACROSS_NODES), "run python -m tools.law_errors"
    assert least <= band.inside / band.predictions <= 0.94
