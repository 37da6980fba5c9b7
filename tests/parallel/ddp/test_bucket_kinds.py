"""Embeddings with sparse=True: rows of all ranks are put together, dense ones are not made."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dpbench.parallel import DistributedDataParallel as Ddp
from tests.parallel.ddp.one_process import (
    TINY,
    assert_same,
    batches,
    check_steps,
    gradients,
    mean_gradients,
)
from tests.parallel.ranks import run_ranks


class Words(nn.Module):
    """Adds the rows of two sparse tables, where words are given, to a dense input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(7, 6, sparse=True).double()
        self.bags = nn.EmbeddingBag(7, 6, sparse=True, mode="sum").double()
        self.layer = nn.Linear(6, 4).double()

    def forward(self, x: Tensor, *words: int) -> Tensor:
        if words:
            index = torch.tensor(words)
            x = x + self.words(index).sum(0) + self.bags(index.unsqueeze(0))
        return self.layer(x)


def ranks_with_other_rows(module: nn.Module, rank: int) -> None:
    module(batches(0)[rank], *((1, 2, 2) if rank else (2, 5))).pow(2).mean().backward()


def rows_of_all_ranks_are_averaged(rank: int) -> None:
    for options in ({}, {"bucket_cap_mb": TINY}, {"static_graph": True}):
        ddp = check_steps(Words, ranks_with_other_rows, rank, **options)
        assert ddp.module.words.weight.grad.is_sparse
        assert ddp.module.words.weight.grad.coalesce().indices().tolist() == [[1, 2, 5]]


def tables_may_be_unused(rank: int) -> None:
    for words in ((), (3,)), ((), ()), ((4, 4), ()):

        def run(module: nn.Module, rank: int, words: tuple[tuple[int, ...], ...] = words) -> None:
            module(batches(0)[rank], *words[rank]).pow(2).mean().backward()

        for cap in (None, TINY):
            check_steps(Words, run, rank, find_unused_parameters=True, bucket_cap_mb=cap)
            check_steps(Words, run, rank, static_graph=True, bucket_cap_mb=cap)


def an_old_gradient_that_nobody_adds_to_is_kept(rank: int) -> None:
    ddp = Ddp(Words(), find_unused_parameters=True)
    ranks_with_other_rows(ddp, rank)
    before = gradients(ddp)
    ddp.module.layer.zero_grad()
    ddp(batches(0)[rank]).pow(2).mean().backward()
    after = gradients(ddp)
    for table in ("words.weight", "bags.weight"):
        assert torch.equal(after[table].to_dense(), before[table].to_dense())


def rows_accumulate_without_sync(rank: int) -> None:
    def run(module: nn.Module, rank: int) -> None:
        module(batches(1)[rank], rank).pow(2).mean().backward()
        ranks_with_other_rows(module, rank)

    ddp = Ddp(Words())
    for _ in range(2):
        ddp.zero_grad()
        with ddp.no_sync():
            ddp(batches(1)[rank], rank).pow(2).mean().backward()
        ranks_with_other_rows(ddp, rank)
        assert_same(gradients(ddp), mean_gradients(Words, run))


def what_is_sent_is_counted(rank: int) -> None:
    ddp = Ddp(Words())
    dense = sum(p.nbytes for p in ddp.module.layer.parameters())
    for step in range(1, 3):
        ddp.zero_grad()
        ranks_with_other_rows(ddp, rank)
        assert ddp.reductions == step * 3
        assert ddp.reduced_bytes > step * dense


def a_dense_gradient_of_a_sparse_table_is_refused(rank: int) -> None:
    class Tied(Words):
        def forward(self, x: Tensor, *words: int) -> Tensor:
            return super().forward(x, *words) + self.words.weight.sum()

    with pytest.raises(RuntimeError, match="dense gradient for the weight of an embedding"):
        ranks_with_other_rows(Ddp(Tied()), rank)


def a_sparse_gradient_from_elsewhere_is_refused(rank: int) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.zeros(5, 2))

        def forward(self, index: Tensor) -> Tensor:
            return nn.functional.embedding(index, self.table, sparse=True)

    ddp = Ddp(Own())
    with pytest.raises(RuntimeError, match=r"sparse gradient for .*not the weight of an nn\.Embed"):
        ddp(torch.tensor([1])).sum().backward()


def several_tables_may_be_unused_on_one_rank_only(rank: int) -> None:
    """Sparse rows are exchanged while they are waited for: in one order on all ranks."""

    def run(module: nn.Module, rank: int) -> None:
        words = (2,) if rank else ()
        module(batches(0)[rank], *words).pow(2).mean().backward()

    for cap in (None, TINY):
        check_steps(Words, run, rank, find_unused_parameters=True, bucket_cap_mb=cap)


class OneOfTwo(nn.Module):
    """Two tables, of which the second may be unused, and no dense parameter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = (nn.Embedding(7, 6, sparse=True).double() for _ in range(2))

    def forward(self, words: Tensor, both: bool) -> Tensor:
        return self.a(words) * self.b(words) if both else self.a(words)


def a_rank_may_use_one_table_and_another_rank_two(rank: int) -> None:
    def run(module: nn.Module, rank: int) -> None:
        module(torch.tensor([rank, 2, 5][: 2 + rank]), rank == 0).pow(2).sum().backward()

    check_steps(OneOfTwo, run, rank, find_unused_parameters=True)


def a_table_may_be_the_wrapped_module_itself(rank: int) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Embedding(7, 6, sparse=True).double()

    check_steps(make, lambda m, r: m(torch.tensor([r, 2])).pow(2).sum().backward(), rank)


GRADIENTS = [
    rows_of_all_ranks_are_averaged,
    tables_may_be_unused,
    several_tables_may_be_unused_on_one_rank_only,
    a_rank_may_use_one_table_and_another_rank_two,
    a_table_may_be_the_wrapped_module_itself,
    an_old_gradient_that_nobody_adds_to_is_kept,
    rows_accumulate_without_sync,
    what_is_sent_is_counted,
    a_dense_gradient_of_a_sparse_table_is_refused,
    a_sparse_gradient_from_elsewhere_is_refused,
]


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_sparse_gradients_are_averaged_by_their_rows(tmp_path: Path, backend: str) -> None:
    run_ranks(GRADIENTS, tmp_path / "store", backend=backend)
