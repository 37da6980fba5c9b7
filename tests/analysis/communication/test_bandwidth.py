"""Factors of nccl-tests, and bandwidths from them."""

from __future__ import annotations

import pytest

from dpbench.analysis.communication.bandwidth import (
    bus_factor,
)


@pytest.mark.parametrize(
    ("collective", "group_size", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 8, 1.75),
        ("all_gather", 4, 0.75),
        ("reduce_scatter", 4, 0.75),
        ("broadcast", 8, 1.0),
        ("all_reduce", 1, 0.0),
    ],
)
def test_the_factor_is_that_of_nccl_tests(collective: str, group_size: int, factor: float) -> None:
    assert bus_factor(collective, group_size) == factor
