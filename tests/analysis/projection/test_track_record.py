"""What the law gets right on published series, and what its bands cover."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

import pytest

from dpbench.analysis.projection.track_record import (
    Error,
    conformal,
    errors,
    held,
    lookalikes,
    published_curves,
)

MANY = 20
"""Predictions of one source from which its median says something."""
TENSORFLOW = "TensorFlow 1.x performance benchmarks page"


def chosen(*, across: bool, source: str = "") -> list[Error]:
    return [e for e in errors() if e.crosses is across and source in e.curve.source]


def medians(found: Sequence[Error]) -> tuple[float, float]:
    """Median sizes of the errors: of the law, and of keeping the last efficiency."""
    return (
        median(abs(error.log_ratio) for error in found),
        median(abs(error.log_ratio_if_kept) for error in found),
    )


def test_bands_are_order_statistics() -> None:
    """Of 19 the smallest and the largest; of 39 the second ones from both ends."""
    nineteen = [place / 100 for place in range(-9, 10)]
    assert (conformal(nineteen).low, conformal(nineteen).high) == (-0.09, 0.09)
    more = conformal([place / 100 for place in range(-19, 20)])
    assert (more.low, more.high) == (-0.18, 0.18)


@pytest.mark.parametrize("across", [False, True])
def test_the_law_errs_less_than_keeping_the_last_efficiency(across: bool) -> None:
    law, kept = medians(chosen(across=across))
    assert law < kept


def test_the_law_errs_less_in_each_source_with_many_series_but_one() -> None:
    """Most series of TensorFlow's page are flat, and keep is nearer in the median; those that are
    not (VGG16, AlexNet) make its mean error the larger one."""
    sources = dict.fromkeys(curve.source.split(",")[0] for curve in published_curves())
    groups = {source: chosen(across=False, source=source) for source in sources}
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


@pytest.mark.parametrize(("across", "least"), [(False, 0.88), (True, 0.86)])
def test_bands_hold_on_series_that_they_were_not_calibrated_on(across: bool, least: float) -> None:
    inside, predictions = held(across=across)
    assert least <= inside / predictions <= 0.94


def test_lookalikes_continue_where_a_series_ends_with_a_similar_efficiency() -> None:
    found = lookalikes("resnet NVIDIA V100", 0.95, (1, 2, 4))
    assert len(found) == 3
    for other in found:
        (first, efficiency), *further = other.efficiencies
        assert first == 4
        assert efficiency == pytest.approx(0.95, abs=0.1)
        assert further
    assert "ResNet" in found[0].name
    assert not lookalikes("resnet", 0.3, (1, 4)), "no published series scales that badly"
