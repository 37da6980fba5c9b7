"""Tensors of every kind: taken, or refused before the other ranks hear of the operation."""

from __future__ import annotations

import ctypes
import gc
import time
import warnings
import weakref
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.two_tensor import TwoTensor

from tests.parallel.ranks import on_ranks, run_ranks

SMALL, LARGE = 5, 300_000


def _finish(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()


def _require_usable_group(message: str) -> None:
    """As good as before, on all ranks."""
    for numel in (SMALL, LARGE):
        dist.all_reduce(tensor := torch.ones(numel))
        assert (tensor == dist.get_world_size()).all(), message


def _refused() -> dict[str, Callable[[bool], dist.Work | None]]:
    """Calls that one rank makes alone and that must fail on it; each takes `async_op`."""
    shared = torch.ones(1).expand(LARGE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantized = torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.quint8)
        nested = torch.nested.nested_tensor([torch.ones(3), torch.ones(2)])
    fives = [torch.ones(SMALL) for _ in range(dist.get_world_size())]
    return {
        "take dense tensors, got layout torch.sparse_csr": lambda later: dist.broadcast(
            torch.ones(3, 3).to_sparse_csr(), 0, async_op=later
        ),
        "take CPU and CUDA tensors, got meta": lambda later: dist.all_reduce(
            torch.ones(3, device="meta"), async_op=later
        ),
        "take no quantized tensors": lambda later: dist.broadcast(quantized, 0, async_op=later),
        "take plain tensors, got TwoTensor": lambda later: dist.broadcast(
            TwoTensor(torch.ones(3), torch.ones(3)), 0, async_op=later
        ),
        "take dense tensors, got a nested tensor": lambda later: dist.broadcast(
            nested, 0, async_op=later
        ),
        r"of shape \(300000,\) and strides \(0,\) cannot take results": lambda later: (
            dist.all_reduce(shared, async_op=later)
        ),
        r"of shape \(5, 2\) and strides \(1, 0\) cannot": lambda later: dist.all_gather(
            [torch.ones(5, 1).expand(5, 2), torch.ones(5, 2)], torch.ones(5, 2), async_op=later
        ),
        "cannot reduce torch.complex64 with MIN": lambda later: dist.reduce_scatter_single(
            torch.ones(3, dtype=torch.complex64),
            torch.ones(3 * len(fives), dtype=torch.complex64),
            op=dist.ReduceOp.MIN,
            async_op=later,
        ),
        "cannot reduce torch.bool with AVG": lambda later: dist.all_reduce(
            torch.ones(LARGE, dtype=torch.bool), op=dist.ReduceOp.AVG, async_op=later
        ),
        "cannot reduce torch.bits8 with SUM": lambda later: dist.all_reduce(
            torch.ones(3, dtype=torch.uint8).view(torch.bits8), async_op=later
        ),
        "cannot reduce torch.uint16 with SUM": lambda later: dist.all_reduce(
            torch.ones(3, dtype=torch.uint16), async_op=later
        ),
        "have no reduction": lambda later: dist.all_reduce(
            torch.ones(3), op=dist._make_nccl_premul_sum(2.0), async_op=later
        ),
        "the output has 4 elements, expected 5 as": lambda later: dist.reduce_scatter(
            torch.ones(4), fives, async_op=later
        ),
        "got tensors of torch.float32, torch.int32 in all_to_all": lambda _: (
            dist.group.WORLD.alltoall(
                [torch.ones(SMALL, dtype=torch.int32) for _ in fives], fives, dist.AllToAllOptions()
            )
        ),
        "that torch.func is transforming": lambda later: torch.func.grad(
            lambda x: dist.all_reduce(x, async_op=later) or x.sum()
        )(torch.ones(3)),
    }


@on_ranks(2, backend="shm")
def test_a_refused_tensor_is_an_error_of_one_rank_and_the_group_goes_on(rank: int) -> None:
    for later in (False, True):
        for message, call in _refused().items():
            if rank == 0:
                with pytest.raises((ValueError, RuntimeError), match=message):
                    _finish(call(later))
            _require_usable_group(message)
    if rank == 0:
        options = dist.BroadcastOptions()
        options.rootRank = 2
        with pytest.raises(ValueError, match="got root 2, expected a rank of the group, below 2"):
            dist.group.WORLD.broadcast([torch.ones(3)], options)
    _require_usable_group("root")


def _tensors_of_inference_mode(rank: int) -> None:
    size = dist.get_world_size()
    for numel, later in product((SMALL, LARGE), (False, True)):
        with torch.inference_mode():
            inside = torch.ones(numel)
            apart = torch.ones(2 * numel)[::2]
            shaped = torch.ones(numel, 1)
            works = [dist.all_reduce(t, async_op=later) for t in (inside, apart, shaped)]
            gathered = [torch.empty(numel) for _ in range(size)]
            works.append(dist.all_gather(gathered, torch.ones(numel), async_op=later))
        for work in works:
            _finish(work)
        for tensor in (inside, apart, shaped):
            assert (tensor == size).all()
            _finish(dist.all_reduce(tensor, async_op=later))
            assert (tensor == size**2).all()
        assert all((tensor == 1).all() for tensor in gathered)
        # What the group keeps from then on serves outside the mode as well.
        _finish(dist.all_reduce(outside := torch.ones(numel), async_op=later))
        assert (outside == size).all()


def _group_of_inference_mode(rank: int) -> None:
    with torch.inference_mode():
        group = dist.new_group(backend="shm")
        dist.all_reduce(torch.ones(3, dtype=torch.float64), group=group)
        arena = group.shared.allocate(4 * LARGE)
    for tensor in (
        arena.view(torch.float32),
        torch.zeros(LARGE),
        torch.zeros(3, dtype=torch.float64),
    ):
        dist.all_reduce(tensor.add_(1), group=group)
        assert (tensor == dist.get_world_size()).all()


def test_inference_mode_changes_nothing(tmp_path: Path) -> None:
    functions = [_tensors_of_inference_mode, _group_of_inference_mode]
    run_ranks(functions, tmp_path / "store", 2, backend="shm")


@on_ranks(2, backend="shm")
def test_odd_tensors_are_taken(rank: int) -> None:
    size = dist.get_world_size()
    conjugate = torch.full((SMALL,), 1 + 2j).conj()
    negative = torch.full((SMALL,), 1 + 2j).conj().imag
    assert conjugate.is_conj()
    assert negative.is_neg()
    leaf = torch.ones(4, 3, requires_grad=True).t()
    scalar = torch.tensor(1.0)
    empty = torch.empty(0, 3)
    channels_last = torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)
    flags = torch.tensor([True, rank == 0, False])
    # dist.all_reduce itself takes no conjugate.
    dist.group.WORLD.allreduce([conjugate], dist.AllreduceOptions()).wait()
    for tensor in (negative, leaf, scalar, empty, channels_last, flags):
        _finish(dist.all_reduce(tensor, async_op=True))
    assert (conjugate == size * (1 - 2j)).all()
    assert (negative == -2 * size).all()
    assert (leaf == size).all()
    assert scalar == size
    assert (channels_last == size).all()
    assert flags.tolist() == [True, True, False]
    # What only gives values may repeat them.
    received = [torch.empty(3) for _ in range(size)]
    dist.all_gather(received, torch.tensor([float(rank)]).expand(3))
    assert [tensor.tolist() for tensor in received] == [[float(r)] * 3 for r in range(size)]
    dist.broadcast(torch.ones(1).expand(3) if rank == 0 else received[1], 0)
    assert (received[1] == 1).all() or rank == 0


@on_ranks(2, backend="shm")
def test_nothing_of_a_tensor_is_kept_after_its_operation(rank: int) -> None:
    for numel, later in product((SMALL, LARGE, 4 * LARGE), (False, True)):
        memory = (ctypes.c_float * numel)()
        alive = weakref.ref(memory)
        tensor = torch.frombuffer(memory, dtype=torch.float32)
        _finish(dist.all_reduce(tensor, async_op=later))
        outputs = [torch.empty(numel) for _ in range(dist.get_world_size())]
        _finish(dist.all_gather(outputs, tensor, async_op=later))
        _finish(dist.reduce_scatter(outputs[0], [tensor] * len(outputs), async_op=later))
        del memory, tensor
        deadline = time.monotonic() + 10
        while alive() is not None and time.monotonic() < deadline:
            gc.collect()
        assert alive() is None, (numel, later)


@on_ranks(2, 3, backend="shm")
def test_results_may_go_where_operands_are(rank: int) -> None:
    size = dist.get_world_size()
    for numel in (SMALL, LARGE):
        everything = torch.arange(size * numel, dtype=torch.float32)
        whole = everything.clone()
        # In place, as it is meant; then from where another rank's part goes; then half of each.
        for shift in (0, numel, numel // 2):
            start = (rank * numel + shift) % ((size - 1) * numel + 1)
            source = whole[start : start + numel]
            mine = source.clone()
            dist.all_gather_single(whole, source)
            theirs = [torch.empty(numel) for _ in range(size)]
            dist.all_gather(theirs, mine)
            assert torch.equal(whole, torch.cat(theirs)), (numel, shift)
        expected = size * everything[rank * numel :][:numel] + sum(range(size))
        for place in (0, rank):
            whole = everything + rank
            output = whole[place * numel :][:numel]
            dist.reduce_scatter_single(output, whole)
            assert torch.equal(output, expected)
        whole = everything + rank
        dist.all_to_all_single(whole, whole)
        parts = [everything[rank * numel :][:numel] + peer for peer in range(size)]
        assert torch.equal(whole, torch.cat(parts))
        rows = list((everything + rank).view(size, numel).unbind())
        output = rows[1 - rank] if rank == 0 else torch.empty(numel)
        dist.scatter(output, rows if rank == 0 else None, src=0)
        assert torch.equal(output, everything[rank * numel :][:numel])


@on_ranks(2, 3, backend="shm")
def test_coalesced_gathers_are_sorted_by_rank_first(rank: int) -> None:
    size = dist.get_world_size()
    shapes = [(2, 3), (LARGE,), (1,)]
    inputs = [torch.full(shape, 10.0 * rank + i) for i, shape in enumerate(shapes)]
    outputs = [[torch.empty(shape) for shape in shapes] for _ in range(size)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        dist.all_gather_coalesced(outputs, inputs)
        for peer, listed in enumerate(outputs):
            for i, tensor in enumerate(listed):
                assert (tensor == 10.0 * peer + i).all()
        with pytest.raises(ValueError, match=r"got lists of \[3\] outputs, expected one list"):
            dist.all_gather_coalesced(outputs[:1], inputs)
