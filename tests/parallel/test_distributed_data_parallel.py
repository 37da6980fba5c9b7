from __future__ import annotations

import copy
import hashlib
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel import DistributedDataParallel as Ddp
from tests.parallel.ranks import run_ranks


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def perceptron(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()


def batches(seed: int, count: int = 2, size: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, size, 6, generator=generator, dtype=torch.float64)


def gradients(module: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in module.parameters() if p.grad is not None]


def assert_same(got: list[Tensor], expected: list[Tensor]) -> None:
    assert len(got) == len(expected) > 0
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def reference(seed: int, scale: float = 1.0) -> list[Tensor]:
    """Gradients of one process over the batches of both ranks."""
    module = perceptron()
    (scale * module(batches(seed).flatten(0, 1)).pow(2).mean()).backward()
    return gradients(module)


def step(ddp: nn.Module, seed: int, rank: int) -> None:
    ddp(batches(seed)[rank]).pow(2).mean().backward()


def digest(module: nn.Module) -> str:
    data = [t.detach().reshape(-1).view(torch.uint8) for t in module.state_dict().values()]
    return hashlib.sha256(torch.cat(data).numpy().tobytes()).hexdigest()


def everywhere(value: object) -> list[object]:
    values: list[object] = [None, None]
    dist.all_gather_object(values, value)
    return values


class Nested(nn.Module):
    """Buffers of several dtypes and shapes below the top."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.norm = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
        self.register_buffer("flag", torch.tensor([seed > 0, True]))
        self.register_buffer("narrow", torch.full((3,), float(seed), dtype=torch.bfloat16))
        self.frozen = nn.Parameter(torch.randn(2), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


# Scenarios: each runs on both ranks.


def makes_all_ranks_equal(rank: int) -> None:
    module = Nested(seed=rank)
    kept = list(module.parameters())
    Ddp(module)
    assert all(a is b for a, b in zip(module.parameters(), kept, strict=True))
    assert len(set(everywhere(digest(module)))) == 1
    assert not module.flag[0]


def averages_inputs_one_and_two_to_one_and_a_half(rank: int) -> None:
    module = nn.Linear(1, 1, bias=False)
    ddp = Ddp(module)
    ddp(torch.tensor([[rank + 1.0]])).sum().backward()
    assert module.weight.grad is not None
    assert module.weight.grad.item() == 1.5


def gives_the_gradients_of_one_process(rank: int) -> None:
    for first, cap in ((1.0, 25.0), (1e-4, 1e-4), (1e-4, 1e-3)):
        module = perceptron()
        ddp = Ddp(module, first_bucket_cap_mb=first, bucket_cap_mb=cap)
        for seed in range(3):
            module.zero_grad(set_to_none=seed % 2 == 0)
            step(ddp, seed, rank)
            assert_same(gradients(module), reference(seed))
            assert len(set(everywhere(gradients(module)[0].sum().item()))) == 1
        bytes_per_step = sum(p.nbytes for p in module.parameters())
        assert ddp.reduced_bytes == 3 * bytes_per_step


def works_with_an_optimizer_made_before_wrapping(rank: int) -> None:
    module, alone = perceptron(), perceptron()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    ddp = Ddp(module)
    other = torch.optim.SGD(alone.parameters(), lr=0.1)
    for seed in range(4):
        optimizer.zero_grad()
        step(ddp, seed, rank)
        optimizer.step()
        other.zero_grad()
        alone(batches(seed).flatten(0, 1)).pow(2).mean().backward()
        other.step()
    assert_same(list(module.parameters()), list(alone.parameters()))


def reduces_expanded_and_shared_gradient_buffers(rank: int) -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.zeros(3))
            self.b = nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            return (self.a + self.b).sum() * x

    module = Sums()
    ddp = Ddp(module)
    ddp(torch.tensor(rank + 1.0)).backward()
    for gradient in gradients(module):
        assert gradient.tolist() == [1.5, 1.5, 1.5]


def reduces_tied_complex_and_channels_last_parameters(rank: int) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Conv2d(2, 3, 2)
            self.two = self.one
            self.complex = nn.Parameter(torch.ones(2, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            return self.one(x).sum() + self.two(x).sum() + (self.complex * x.sum()).real.sum()

    module = Odd().to(memory_format=torch.channels_last)
    ddp = Ddp(module)
    ddp(torch.full((1, 2, 3, 3), rank + 1.0)).backward()
    assert module.one.weight.grad is not None
    assert module.complex.grad is not None
    assert module.one.weight.grad.stride() == module.one.weight.stride()
    assert module.one.weight.grad.unique().tolist() == [2 * 4 * 1.5]
    assert module.complex.grad.tolist() == [27 + 0j, 27 + 0j]


def reduces_once_for_many_steps_without_sync(rank: int) -> None:
    module = perceptron()
    ddp = Ddp(module)
    for _ in range(2):
        before = ddp.reductions
        module.zero_grad()
        with ddp.no_sync():
            for seed in range(3):
                with ddp.no_sync():
                    step(ddp, seed, rank)
        step(ddp, 3, rank)
        assert ddp.reductions == before + 1
        expected = [reference(seed) for seed in range(4)]
        assert_same(gradients(module), [sum(parts) for parts in zip(*expected, strict=True)])


def counts_the_flag_at_forward_and_restores_it(rank: int) -> None:
    module = perceptron()
    ddp = Ddp(module)
    try:
        with ddp.no_sync():
            loss = ddp(batches(0)[rank]).pow(2).mean()
            raise KeyError
    except KeyError:
        loss.backward()
    assert ddp.reductions == 0
    module.zero_grad()
    loss = ddp(batches(0)[rank]).pow(2).mean()
    with ddp.no_sync():
        loss.backward()
    assert_same(gradients(module), reference(0))


def adds_a_second_backward_to_the_local_gradients(rank: int) -> None:
    module, alone = perceptron(), perceptron()
    ddp = Ddp(module)
    loss = ddp(batches(0)[rank]).pow(2).mean()
    loss.backward(retain_graph=True)
    loss.backward()
    alone(batches(0)[rank]).pow(2).mean().backward()
    both = zip(reference(0), gradients(alone), strict=True)
    assert_same(gradients(module), [mean + local for mean, local in both])
    assert ddp.reductions == 1


def reduces_two_forwards_in_one_backward(rank: int) -> None:
    module = perceptron()
    ddp = Ddp(module)
    first, second = (ddp(batches(seed)[rank]).pow(2).mean() for seed in range(2))
    (first + second).backward()
    both = zip(reference(0), reference(1), strict=True)
    assert_same(gradients(module), [a + b for a, b in both])
    ddp(batches(0)[rank])  # an output that is dropped
    torch.autograd.grad(ddp(batches(0)[rank]).sum(), list(module.parameters()))
    assert ddp.reductions == 1


def keeps_gradients_as_views_of_their_bucket(rank: int) -> None:
    module = perceptron()
    ddp = Ddp(module)
    for seed in range(3):  # the second builds the buckets for good
        step(ddp, seed, rank)
    storage = {p.grad.untyped_storage().data_ptr() for p in module.parameters()}
    assert len(storage) == 1
    grads = [p.grad for p in module.parameters()]
    module.zero_grad(set_to_none=False)
    step(ddp, 3, rank)
    assert all(p.grad is old for p, old in zip(module.parameters(), grads, strict=True))
    assert_same(gradients(module), reference(3))


def sends_nested_buffers_in_training_only(rank: int) -> None:
    module = Nested(seed=0).double()
    ddp = Ddp(module)
    norm = module.norm[1]
    losses = [ddp(batches(seed)[rank]).pow(2).mean() for seed in range(2)]
    means = everywhere(norm.running_mean.tolist())
    assert means[0] != means[1]  # of the last batch, which rank 0 will send next
    sum(losses).backward()  # although the buffers were written in between
    sent = ddp.broadcast_bytes
    with torch.no_grad():
        ddp(batches(2)[rank])
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
    torch.testing.assert_close(norm.running_mean, after, rtol=1e-12, atol=1e-12)
    assert len(set(map(str, everywhere(norm.num_batches_tracked.item())))) == 1
    del ddp
    silent = Ddp(module, broadcast_buffers=False)
    silent(batches(4)[rank])
    assert silent.broadcast_bytes == 0


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
    assert digest(module) == digest(other)
    assert ddp.module is module


def lets_go_of_the_module_when_deleted(rank: int) -> None:
    module = perceptron()
    ddp = Ddp(module)
    step(ddp, 0, rank)
    del ddp
    module.zero_grad()
    step(module, 0, rank)
    assert_same(gradients(module), local_reference(rank))
    module.zero_grad()
    ddp = Ddp(module)
    step(ddp, 0, rank)
    assert_same(gradients(module), reference(0))
    assert ddp.reductions == 1
    ddp.remove_hooks()
    with pytest.raises(TypeError, match="cannot be pickled"):
        copy.deepcopy(ddp)


def local_reference(rank: int) -> list[Tensor]:
    alone = perceptron()
    step(alone, 0, rank)
    return gradients(alone)


def names_a_difference_on_every_rank(rank: int) -> None:
    shapes = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3 + rank))
    with pytest.raises(RuntimeError, match=r"parameter '1\.weight': \(3, 3\).* rank 1 has .*\(4,"):
        Ddp(shapes)
    with pytest.raises(RuntimeError, match=r"nothing more.*rank 1 .*'1\.weight'|option"):
        Ddp(nn.Sequential(*[nn.Linear(3, 3) for _ in range(1 + rank)]))
    with pytest.raises(RuntimeError, match=r"torch\.float64"):
        Ddp(nn.Linear(2, 2).to(torch.float64 if rank else torch.float32))
    with pytest.raises(RuntimeError, match="requires_grad=False"):
        Ddp(nn.Linear(2, 2).requires_grad_(rank == 0) if rank == 0 else half_frozen())
    with pytest.raises(RuntimeError, match="option 'bucket_cap_mb'"):
        Ddp(nn.Linear(2, 2), bucket_cap_mb=1 + rank)


def half_frozen() -> nn.Linear:
    linear = nn.Linear(2, 2)
    linear.weight.requires_grad_(False)
    return linear


def refuses_bad_arguments(rank: int) -> None:
    linear = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"got device_ids=\[0, 1\]"):
        Ddp(linear, device_ids=[0, 1])
    with pytest.raises(ValueError, match="one CUDA device"):
        Ddp(linear, device_ids=["cpu"])
    for cap in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=f"got bucket_cap_mb={cap}"):
            Ddp(linear, bucket_cap_mb=cap)
    with pytest.raises(RuntimeError, match="doesn't have any parameter"):
        Ddp(nn.Linear(2, 2).requires_grad_(False))
    with pytest.raises(RuntimeError, match="uninitialized"):
        Ddp(nn.LazyLinear(2))
    with pytest.raises(TypeError, match="find_unused_parameters"):
        Ddp(linear, find_unused_parameters=True)  # type: ignore[call-arg]


def names_unused_and_changed_parameters(rank: int) -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor, both: bool) -> Tensor:
            return self.a(x) + self.b(x) if both else self.a(x)

    module = Half()
    ddp = Ddp(module)
    x = torch.ones(1, 2)
    ddp(x, both=True).sum().backward()
    ddp(x, both=False).sum().backward()
    reductions = ddp.reductions
    with pytest.raises(RuntimeError, match=rf"(?s)finished reduction.*rank {rank}: b\.weight"):
        ddp(x, both=True)
    assert ddp.reductions == reductions
    del ddp
    ddp = Ddp(module)
    module.a.bias.requires_grad_(False)
    with pytest.raises(RuntimeError, match=r"'a\.bias' had .*wrap the module again"):
        ddp(x, both=True)


EXACTNESS = [
    makes_all_ranks_equal,
    averages_inputs_one_and_two_to_one_and_a_half,
    gives_the_gradients_of_one_process,
    works_with_an_optimizer_made_before_wrapping,
    reduces_expanded_and_shared_gradient_buffers,
    reduces_tied_complex_and_channels_last_parameters,
]
SYNCHRONIZATION = [
    reduces_once_for_many_steps_without_sync,
    counts_the_flag_at_forward_and_restores_it,
    adds_a_second_backward_to_the_local_gradients,
    reduces_two_forwards_in_one_backward,
    keeps_gradients_as_views_of_their_bucket,
]
STATE = [
    sends_nested_buffers_in_training_only,
    exchanges_state_dicts_with_torch,
    lets_go_of_the_module_when_deleted,
]
ERRORS = [
    names_a_difference_on_every_rank,
    refuses_bad_arguments,
    names_unused_and_changed_parameters,
]


def test_gradients_are_those_of_one_process_over_all_batches(store: Path) -> None:
    run_ranks(EXACTNESS, store)


def test_a_backward_reduces_once_and_only_if_its_forward_said_so(store: Path) -> None:
    run_ranks(SYNCHRONIZATION, store)


def test_buffers_state_dicts_and_hooks_follow_the_wrapper(store: Path) -> None:
    run_ranks(STATE, store)


def test_mistakes_raise_on_every_rank_and_name_their_cause(store: Path) -> None:
    run_ranks(ERRORS, store)


def test_without_a_process_group_it_refuses() -> None:
    with pytest.raises(RuntimeError, match="init_process_group"):
        Ddp(nn.Linear(2, 2))


def three_ranks_average_by_three(rank: int) -> None:
    module = nn.Linear(1, 1, bias=False)
    group = dist.new_group([2, 1])
    ddp = Ddp(module)
    ddp(torch.tensor([[rank + 1.0]])).sum().backward()
    assert module.weight.grad is not None
    assert module.weight.grad.item() == pytest.approx(2.0)
    if rank == 0:
        with pytest.raises(RuntimeError, match="not a member"):
            Ddp(nn.Linear(1, 1), process_group=group)
        return
    module = nn.Linear(1, 1, bias=False)
    ddp = Ddp(module, process_group=group)
    ddp(torch.tensor([[rank + 1.0]])).sum().backward()
    assert module.weight.grad is not None
    assert module.weight.grad.item() == 2.5


def test_other_group_sizes_and_subgroups_average_over_their_members(store: Path) -> None:
    run_ranks(three_ranks_average_by_three, store, world_size=3)
