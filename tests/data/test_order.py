from __future__ import annotations

import torch

from dpbench.data.order import permutation


def test_an_order_has_every_index_once_and_belongs_to_its_seed_and_epoch() -> None:
    orders = [permutation(50, seed=seed, epoch=epoch) for seed in (0, 1) for epoch in (0, 1, 2)]
    assert all(sorted(order.tolist()) == list(range(50)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 6
    assert orders[1].equal(permutation(50, seed=0, epoch=1))


def test_the_orders_are_those_that_recorded_sweeps_had() -> None:
    order = permutation(6, seed=1, epoch=2)
    assert order.dtype == torch.int64
    assert order.tolist() == [4, 5, 1, 0, 3, 2]


def test_torchs_random_state_has_no_part_in_it() -> None:
    before = torch.get_rng_state()
    first = permutation(50, seed=0, epoch=0)
    assert torch.get_rng_state().equal(before)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1234)
        assert permutation(50, seed=0, epoch=0).equal(first)
