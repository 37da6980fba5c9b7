"""The wrapper around a module: what it sends, keeps and gives back."""

from __future__ import annotations

import copy
import ctypes
import gc
import hashlib
import io
import weakref
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel import DistributedDataParallel as Ddp
from tests.parallel.ddp.one_process import (
    TINY,
    assert_same,
    batches,
    everywhere,
    gradients,
    mean_gradients,
    perceptron,
    step,
)
from tests.parallel.ranks import run_ranks


def reference(seed: int = 0) -> dict[str, Tensor | None]:
    return mean_gradients(perceptron, lambda module, rank: step(module, seed, rank))


def digest(module: nn.Module) -> str:
    data = [t.detach().reshape(-1).view(torch.uint8) for t in module.state_dict().values()]
    return hashlib.sha256(torch.cat(data).numpy().tobytes()).hexdigest()


class Nested(nn.Module):
    """Buffers of several dtypes and shapes below the top."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.norm = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
        self.register_buffer("flag", torch.tensor([seed > 0, True]))
        self.register_buffer("narrow", torch.full((3,), float(seed), dtype=torch.bfloat16))
        self.register_buffer("strided", torch.full((2, 3), float(seed)).t())
        self.frozen = nn.Parameter(torch.randn(2), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


# Scenarios: each runs on all ranks.


def makes_all_ranks_equal(rank: int) -> None:
    module = Nested(seed=rank)
    kept = list(module.parameters())
    Ddp(module)
    assert all(a is b for a, b in zip(module.parameters(), kept, strict=True))
    assert len(set(everywhere(digest(module)))) == 1
    assert not module.flag[0]


def averages_inputs_one_and_two_to_one_and_a_half(rank: int) -> None:
    ddp = Ddp(nn.Linear(1, 1, bias=False))
    ddp(torch.tensor([[rank + 1.0]])).sum().backward()
    assert ddp.module.weight.grad.item() == 1.5


def leaves_alone_what_it_shall_ignore(rank: int) -> None:
    module = Nested(seed=rank)
    bias = module.norm[0].bias.detach().clone()
    Ddp._set_params_and_buffers_to_ignore_for_model(module, ["norm.0.bias", "narrow"])
    ddp = Ddp(module)
    assert torch.equal(module.norm[0].bias, bias)
    assert module.narrow[0] == rank
    x = batches(0)[rank].float()
    ddp(x).pow(2).mean().backward()
    ddp(x).pow(2).mean().backward()  # sends buffers
    assert module.narrow[0] == rank
    grads = everywhere(module.norm[0].bias.grad.tolist())
    assert grads[0] != grads[1]
    del ddp
    Ddp._set_params_and_buffers_to_ignore_for_model(
        module, [n for n, _ in module.named_parameters()]
    )
    with pytest.raises(RuntimeError, match="doesn't have any parameter"):
        Ddp(module)


# Buffers.


def sends_nested_buffers_in_training_only(rank: int) -> None:
    module = Nested(seed=0).double()
    ddp = Ddp(module)
    norm = module.norm[1]
    losses = [ddp(batches(seed)[rank]).pow(2).mean() for seed in range(2)]
    means = everywhere(norm.running_mean.tolist())
    assert means[0] != means[1]  # of the last batch, which rank 0 will send next
    sum(losses).backward()  # although the buffers were written in between
    sent = ddp.broadcast_bytes
    with torch.no_grad():  # as torch.optim.swa_utils.update_bn does
        ddp(batches(2)[rank])
    assert ddp.broadcast_bytes > sent
    sent = ddp.broadcast_bytes
    if rank == 0:  # neither a mode nor eval is a collective
        ddp.eval()
        assert not module.training
        ddp(batches(2)[rank])
        ddp.train()
    assert ddp.broadcast_bytes == sent > 0
    before = everywhere(norm.running_mean.tolist())[0]
    x = batches(3)[0]
    ddp(x)
    after = 0.9 * torch.tensor(before, dtype=torch.float64) + 0.1 * module.norm[0](x).mean(0)
    assert torch.allclose(norm.running_mean, after, rtol=1e-12, atol=1e-12)
    assert len(set(everywhere(norm.num_batches_tracked.item()))) == 1


def one_rank_may_evaluate_after_a_step_without_sync(rank: int) -> None:
    ddp = Ddp(Nested(seed=0).double())
    with ddp.no_sync():
        step(ddp, 0, rank)
    if rank == 0:
        ddp.eval()
        ddp(batches(1)[0])
        ddp.train()
    step(ddp, 1, rank)
    assert len(everywhere(rank)) == 2


def sends_no_buffers_where_told_so(rank: int) -> None:
    silent = Ddp(Nested(seed=rank).double(), broadcast_buffers=False)
    assert bool(silent.module.flag[0]) == (rank == 1)
    once = Ddp(Nested(seed=rank).double(), forward_sync_buffers=False)
    assert not once.module.flag[0]
    always = Ddp(Nested(seed=rank).double(), broadcast_buffers=False, forward_sync_buffers=True)
    assert bool(always.module.flag[0]) == (rank == 1)
    for ddp in (silent, once, always):
        step(ddp, 0, rank)
    assert silent.broadcast_bytes == once.broadcast_bytes == 0 < always.broadcast_bytes
    assert not always.module.flag[0]


def sends_buffers_that_were_replaced(rank: int) -> None:
    ddp = Ddp(Nested(seed=0).double())
    step(ddp, 0, rank)
    ddp.module.narrow = torch.full((5,), float(rank + 7))
    step(ddp, 0, rank)
    assert ddp.module.narrow.tolist() == [7.0] * 5


# State.


def exchanges_state_dicts_with_torch(rank: int) -> None:
    module = perceptron(1)
    ddp = Ddp(module)
    theirs = nn.parallel.DistributedDataParallel(perceptron(2))
    assert list(ddp.state_dict()) == list(theirs.state_dict())
    ddp.load_state_dict(theirs.state_dict())
    assert digest(ddp) == digest(theirs)
    other = perceptron(3)
    ddp.load_state_dict(other.state_dict())
    assert digest(module) == digest(other)
    theirs.load_state_dict(ddp.state_dict())
    assert digest(theirs) == digest(ddp)
    broken = {**perceptron(4).state_dict(), "2.bias": torch.zeros(9), "more": torch.zeros(1)}
    with pytest.raises(RuntimeError, match=r"(?s)more.*2\.bias"):
        ddp.load_state_dict(broken)
    with pytest.raises(ValueError, match="assign=True"):
        ddp.load_state_dict(other.state_dict(), assign=True)
    assert digest(module) == digest(other)
    assert ddp.module is module


def loads_a_state_between_steps(rank: int) -> None:
    ddp = Ddp(perceptron())
    start = {name: value.clone() for name, value in ddp.state_dict().items()}
    for seed in range(3):
        ddp.zero_grad()
        step(ddp, seed, rank)
        assert_same(gradients(ddp), reference(seed))
        with torch.no_grad():
            for p in ddp.parameters():
                p -= p.grad
        ddp.load_state_dict(start)


def through_a_file(ddp: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(ddp, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def copies_go_on_training(rank: int) -> None:
    for twin_of in (copy.deepcopy, through_a_file):
        for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}):
            ddp = Ddp(perceptron(), bucket_cap_mb=TINY, **options)
            for seed in range(2):
                ddp.zero_grad()
                step(ddp, seed, rank)
            twin = twin_of(ddp)
            for seed in range(2, 5):
                for wrapped in (ddp, twin):
                    wrapped.zero_grad()
                    step(wrapped, seed, rank)
                    assert_same(gradients(wrapped), reference(seed))
            assert twin.reduced_bytes == 3 * sum(p.nbytes for p in twin.parameters())


def copies_need_the_default_group(rank: int) -> None:
    ddp = Ddp(perceptron(), process_group=dist.new_group([0, 1]))
    with pytest.raises(RuntimeError, match="default process group"):
        copy.deepcopy(ddp)
    copy.deepcopy(ddp.module)


# The life of a wrapper.


def lets_go_of_the_module_when_deleted(rank: int) -> None:
    module = perceptron()
    ddp = Ddp(module)
    step(ddp, 0, rank)
    bucket = module[0].weight.grad.untyped_storage().data_ptr()
    alive = weakref.ref(ddp), weakref.ref(ddp._reducer)
    gc.disable()
    del ddp
    assert [reference() for reference in alive] == [None, None]
    gc.enable()
    module.zero_grad()
    step(module, 0, rank)
    alone = perceptron()
    step(alone, 0, rank)
    assert_same(gradients(module), gradients(alone))
    module.zero_grad()
    ddp = Ddp(module)
    step(ddp, 0, rank)
    assert_same(gradients(ddp), reference())
    assert ddp.reductions == 1
    assert bucket
    ddp.remove_hooks()
    module.zero_grad()
    step(module, 0, rank)
    assert_same(gradients(module), gradients(alone))


def held() -> int:
    """Returns the bytes that this process holds, without what its allocator keeps for later.

    A freed block of 4 MB in the heap may fit no aligned block of the same size; these add up.
    """
    ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_info().rss


def can_be_made_many_times(rank: int) -> None:
    module = nn.Linear(1000, 1000)  # 4 MB
    for count in range(60):
        if count == 10:
            before = held()
        ddp = Ddp(module)
        ddp(torch.ones(1, 1000)).sum().backward()
        module.zero_grad()
        del ddp
    assert held() - before < 100e6  # of 200 MB, if the buckets stayed


BASICS = [
    makes_all_ranks_equal,
    averages_inputs_one_and_two_to_one_and_a_half,
    leaves_alone_what_it_shall_ignore,
]
BUFFERS = [
    sends_nested_buffers_in_training_only,
    one_rank_may_evaluate_after_a_step_without_sync,
    sends_no_buffers_where_told_so,
    sends_buffers_that_were_replaced,
]
STATE = [
    exchanges_state_dicts_with_torch,
    loads_a_state_between_steps,
    copies_go_on_training,
    copies_need_the_default_group,
]
LIFE = [lets_go_of_the_module_when_deleted, can_be_made_many_times]
both = pytest.mark.parametrize("backend", ["gloo", "shm"])


@both
def test_ranks_start_equal_and_average_their_gradients(tmp_path: Path, backend: str) -> None:
    run_ranks(BASICS, tmp_path / "store", backend=backend)


@both
def test_buffers_are_sent_before_training_forwards_only(tmp_path: Path, backend: str) -> None:
    run_ranks(BUFFERS, tmp_path / "store", backend=backend)


@both
def test_states_and_copies_are_those_of_the_module(tmp_path: Path, backend: str) -> None:
    run_ranks(STATE, tmp_path / "store", backend=backend)


@both
def test_hooks_and_buckets_go_with_the_wrapper(tmp_path: Path, backend: str) -> None:
    run_ranks(LIFE, tmp_path / "store", backend=backend)
