from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dpbench.parallel.dp.reduction import SHARED_ELEMENTS, Reduction, coalesced
from dpbench.parallel.dp.workers import WorkerPool

CPU = torch.device("cpu")


def sparse(row: int) -> Tensor:
    return torch.sparse_coo_tensor(
        torch.tensor([[row]]), torch.ones(1, 3), (4, 3), check_invariants=True
    )


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_large_and_small_gradients_are_summed_in_the_order_of_the_replicas(replicas: int) -> None:
    torch.manual_seed(0)
    shapes = [(SHARED_ELEMENTS + 5,), (3, 4), (), (300, 300)]
    found = [[torch.randn(shape) for shape in shapes] for _ in range(replicas)]
    kept = [[gradient.clone() for gradient in mine] for mine in found]
    reduction = Reduction(CPU)
    with torch.no_grad():
        total = reduction.add(found, WorkerPool([CPU] * replicas))
    for i, shape in enumerate(shapes):
        expected = kept[0][i]
        for others in kept[1:]:
            expected = expected + others[i]
        assert total[i] is not None
        assert total[i].shape == torch.Size(shape)
        assert torch.equal(total[i], expected)
    for before, after in zip(kept, found, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert reduction.reduced_bytes == 4 * sum(torch.Size(shape).numel() for shape in shapes)
    assert reduction.reductions == 1


def test_large_sums_are_made_in_place_where_nothing_else_is_in_the_memory() -> None:
    pool = WorkerPool([CPU, CPU])
    memory = torch.ones(SHARED_ELEMENTS)
    alone, other = torch.ones(SHARED_ELEMENTS), torch.full((SHARED_ELEMENTS,), 2.0)
    first = [alone, memory, memory.view(-1, 2)]
    second = [other, other.clone(), other.view(-1, 2)]
    with torch.no_grad():
        total = Reduction(CPU).add([first, second], pool, are_own=True)
    assert [set(t.flatten().tolist()) for t in total if t is not None] == [{3.0}, {3.0}, {3.0}]
    assert total[0] is alone
    assert set(memory.tolist()) == {1.0}
    assert set(other.tolist()) == {2.0}


def test_gradients_that_some_replicas_lack_are_summed_over_the_others() -> None:
    a, b, c = torch.ones(2), torch.full((2,), 2.0), torch.full((2,), 4.0)
    reduction = Reduction(CPU)
    total = reduction.add([[None, a, None], [b, b, None], [c, None, None]], WorkerPool([CPU] * 3))
    assert [None if t is None else t.tolist() for t in total] == [[6.0, 6.0], [3.0, 3.0], None]
    reduction.add([[None], [None]], WorkerPool([CPU] * 2))
    assert reduction.reductions == 1


def test_transposed_and_sparse_gradients_are_summed_too() -> None:
    square = torch.arange(90000.0).view(300, 300)
    total = Reduction(CPU).add([[square, sparse(0)], [square.T, sparse(2)]], WorkerPool([CPU, CPU]))
    assert torch.equal(total[0], square + square.T)  # type: ignore[arg-type]
    assert total[1] is not None
    assert total[1].is_sparse
    assert total[1].to_dense()[:, 0].tolist() == [1.0, 0.0, 1.0, 0.0]


def test_gradients_from_elsewhere_come_in_one_piece_per_dtype() -> None:
    here, there = torch.ones(2), torch.device("meta")
    gradients = [here, torch.ones(2, 3, dtype=torch.float64), None, torch.ones(()), sparse(1)]
    moved = coalesced(gradients, there)
    assert moved[2] is None
    for before, after in zip(gradients, moved, strict=True):
        if before is not None and after is not None:
            assert (after.shape, after.dtype, after.device) == (before.shape, before.dtype, there)
    assert moved[0]._base is moved[3]._base is not None  # type: ignore[union-attr]
    assert coalesced([here], CPU)[0] is here
