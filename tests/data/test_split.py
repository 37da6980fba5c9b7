"""Samples of a batch for ranks, by hand and by law."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbench.data.sharding import split_by_shares
from dpbench.parallel.dp.scatter_gather import balanced_split
from tests.builders import trial_spec

quick = settings(max_examples=100, deadline=None)
shares_of_ranks = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8)


@quick
@given(shares_of_ranks, st.integers(0, 500))
def test_the_sizes_are_all_of_the_total_and_nobody_goes_empty(
    shares: list[float], more: int
) -> None:
    total = len(shares) + more
    sizes = split_by_shares(total, shares)
    assert sum(sizes) == total
    assert min(sizes) >= 1


@quick
@given(st.integers(1, 600), st.integers(1, 5000))
def test_a_batch_is_divided_among_ranks_as_it_is_scattered_over_replicas(
    parts: int, total: int
) -> None:
    """dpbench.parallel stands alone, so its function is another one."""
    trial = trial_spec(scaling="strong", batch_size=total, group_size=parts)
    assert [size for size in trial.replica_batch_sizes if size] == balanced_split(total, parts)
    if total >= parts:
        assert split_by_shares(total, (1.0,) * parts) == trial.replica_batch_sizes


@pytest.mark.parametrize(
    ("total", "shares", "sizes"),
    [
        (10, (1, 1, 1, 1), (3, 3, 2, 2)),
        (10, (2, 1), (7, 3)),
        (30, (9, 1), (27, 3)),
        # Due 0.1 and 9.9: the least of one comes from the other.
        (10, (1, 99), (1, 9)),
        # Due 2.94, 0.03, 0.03.
        (3, (98, 1, 1), (1, 1, 1)),
        # The sum of 0.1, 0.2 and 0.3 is a little more than 0.6.
        (6, (0.1, 0.2, 0.3), (1, 2, 3)),
        # Due 2.5 and 2.5: the earlier one gets what is left.
        (5, (0.3, 0.3), (3, 2)),
    ],
)
def test_divisions_worked_by_hand(
    total: int, shares: tuple[float, ...], sizes: tuple[int, ...]
) -> None:
    assert split_by_shares(total, shares) == sizes
