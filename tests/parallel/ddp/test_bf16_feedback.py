"""Gradients that travel as bfloat16: what is lost, what comes back, and that all ranks agree."""

from __future__ import annotations

import copy
import math
import random
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel import Bf16Feedback, DistributedDataParallel, bf16_feedback
from dpbench.parallel.ddp.comm_hooks import GradientBucket
from dpbench.parallel.hosts import all_reduce
from tests.parallel.ranks import run_ranks
from tests.parallel.shm.casualties import error_of, run_with_casualties, signal_soon

TOLERANCE = 2.01 * 2**-8
"""Stated by the hook: the largest error of a first step ÷ the ranks' mean magnitude."""
SHORT_CHUNK_BYTES = 64 * 1024
SIZES = (0, 1, 2, 3, 127, 1000, 16_385, 50_001)
"""With the largest there are several chunks, the last of them of an odd size."""
PLACES: dict[str, tuple[str, int, tuple[int, ...]]] = {
    "gloo, two ranks": ("gloo", 2, ()),
    "gloo, three ranks": ("gloo", 3, ()),
    "two and two": ("shm+gloo", 4, (0, 0, 1, 1)),
    "two and one, in turn": ("shm+gloo", 3, (0, 1, 0)),
    "three hosts": ("shm+gloo", 4, (0, 1, 1, 2)),
}
WRAPPERS = (DistributedDataParallel, nn.parallel.DistributedDataParallel)


def run_everywhere(place: str, function: Callable[[int], Any], folder: Path) -> list[Any]:
    backend, ranks, hosts = PLACES[place]
    return run_ranks(function, folder / "store", ranks, backend=backend, hosts=hosts)


def _averaged(
    state: Bf16Feedback, gradient: Tensor, parameters: list[nn.Parameter], index: int = 0
) -> Tensor:
    """What the hook makes of a bucket, which is the same on all ranks."""
    buffer = gradient.clone()
    bucket = GradientBucket(index, buffer, [buffer], parameters, False)
    result: Tensor = bf16_feedback(state, bucket).wait()
    assert result.is_set_to(buffer)
    everyone = [torch.empty_like(result) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, result)
    bits = result.view(torch.int32)
    assert all(torch.equal(other.view(torch.int32), bits) for other in everyone)
    return result


def _gradients(seed: int, numel: int, scale: float = 1.0) -> list[Tensor]:
    """Of every rank."""
    generator = torch.Generator().manual_seed(seed)
    shape = (dist.get_world_size(), numel)
    return list((scale * torch.randn(shape, generator=generator)).unbind())


def _mean(gradients: list[Tensor]) -> Tensor:
    return torch.stack(gradients).double().mean(0)


def _parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(1))]


def _within_the_bound(rank: int) -> None:
    all_reduce.CHUNK_BYTES = SHORT_CHUNK_BYTES
    state, rng = Bf16Feedback(), random.Random(20260101)
    for case in range(40):
        numel, scale = rng.choice(SIZES), 10.0 ** rng.randint(-25, 25)
        parameters = _parameters()
        before = torch.zeros(numel, dtype=torch.float64)
        for step in range(3):
            gradients = _gradients(10 * case + step, numel, scale)
            found = _averaged(state, gradients[rank], parameters, case % 3)
            now = _mean([gradient.abs() for gradient in gradients]) + TOLERANCE * before
            error = (found.double() - _mean(gradients)).abs()
            assert (error <= TOLERANCE * (before + now)).all(), (case, step, numel, scale)
            before = now


@pytest.mark.parametrize("place", PLACES)
def test_an_average_is_within_the_stated_bound_and_equal_on_all_ranks(
    tmp_path: Path, place: str
) -> None:
    run_everywhere(place, _within_the_bound, tmp_path)


def _errors_of_means(rank: int) -> tuple[dict[int, float], dict[int, float]]:
    """By number of steps: the error of the mean of all averages, with feedback and without it."""
    numel, steps = 4001, 50
    state, parameters = Bf16Feedback(), _parameters()
    found: tuple[dict[int, float], dict[int, float]] = ({}, {})
    for errors, remembers in zip(found, (True, False), strict=True):
        total, exact = (torch.zeros(numel, dtype=torch.float64) for _ in range(2))
        for step in range(1, steps + 1):
            # Of a gradient that stays as it is, the same bits would be lost in each step.
            gradients = _gradients(7, numel)
            parameters = parameters if remembers else _parameters()
            total += _averaged(state, gradients[rank], parameters)
            exact += _mean(gradients)
            errors[step] = float((total - exact).norm() / step)
    return found


@pytest.mark.parametrize("place", ["gloo, three ranks", "two and two"])
def test_the_error_of_a_mean_over_steps_falls_as_one_over_steps_thanks_to_the_feedback(
    tmp_path: Path, place: str
) -> None:
    with_feedback, without = run_everywhere(place, _errors_of_means, tmp_path)[0]
    assert with_feedback[1] == without[1] > 0
    for steps in (2, 10, 25, 50):
        assert with_feedback[steps] * steps < 1.5 * with_feedback[1]
        assert without[steps] == pytest.approx(without[1])


def _not_finite(rank: int) -> None:
    state, parameters = Bf16Feedback(), _parameters()
    gradients = _gradients(3, 1000)
    ruined = gradients[rank].clone()
    if rank == 0:
        ruined[:3] = torch.tensor([math.nan, math.inf, -math.inf])
        # Shares of all leaders have some; float32 holds this number, and bfloat16 does not.
        ruined[-4:] = torch.tensor([math.nan, math.inf, -math.inf, 3.4e38])
    else:
        ruined[-1] = 0
    found = _averaged(state, ruined, parameters)
    assert found[:3].isnan().tolist() == [True, False, False]
    assert found[1:3].tolist() == [math.inf, -math.inf]
    assert found[-4:-1].isnan().tolist() == [True, False, False]
    assert found[-3:].tolist() == [math.inf, -math.inf, math.inf]
    assert found[3:-4].isfinite().all()
    again = _averaged(state, gradients[rank], parameters)
    limit = 2 * TOLERANCE * (1 + TOLERANCE) * max(float(g.abs().max()) for g in gradients)
    torch.testing.assert_close(again.double(), _mean(gradients), rtol=0, atol=limit)


@pytest.mark.parametrize("place", PLACES)
def test_what_is_not_finite_goes_through_and_does_not_come_back(tmp_path: Path, place: str) -> None:
    run_everywhere(place, _not_finite, tmp_path)


def _refused(rank: int) -> None:
    state = Bf16Feedback()

    def of(gradient: Tensor) -> None:
        bf16_feedback(state, GradientBucket(0, gradient, [gradient], [], True))

    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.complex64):
        with pytest.raises(TypeError, match=f"dense gradients of {dtype}, expected dense ones"):
            of(torch.ones(4, dtype=dtype))
    with pytest.raises(TypeError, match=r"sparse gradients of torch\.float32, expected dense ones"):
        of(torch.eye(3).to_sparse())
    with pytest.raises(ValueError, match="got the backend none for meta tensors, expected gloo"):
        of(torch.ones(4, device="meta"))
    config, dist.get_backend_config = dist.get_backend_config, lambda _: "cuda:nccl"
    try:
        with pytest.raises(
            ValueError, match=r"got the backend nccl, expected gloo, shm, shm\+gloo"
        ):
            Bf16Feedback()
    finally:
        dist.get_backend_config = config


def test_other_gradients_and_backends_are_refused(tmp_path: Path) -> None:
    run_ranks(_refused, tmp_path / "store")


def _in_one_memory(rank: int) -> None:
    gradients = _gradients(5, 1001)
    parameters, state = _parameters(), Bf16Feedback()
    exact = gradients[rank].clone()
    dist.all_reduce(exact, dist.ReduceOp.AVG)
    for _ in range(2):
        assert torch.equal(_averaged(state, gradients[rank], parameters), exact)


@pytest.mark.parametrize("backend", ["shm", "shm+gloo"])
def test_nothing_is_rounded_where_all_ranks_share_a_memory(tmp_path: Path, backend: str) -> None:
    run_ranks(_in_one_memory, tmp_path / "store", backend=backend)


def _alone(rank: int) -> None:
    gradient, state = _gradients(5, 1001)[0], Bf16Feedback()
    assert torch.equal(_averaged(state, gradient, _parameters()), gradient)


def test_one_rank_keeps_its_gradients(tmp_path: Path) -> None:
    run_ranks(_alone, tmp_path / "store", 1)


class Branches(nn.Module):
    """Layers of which each call names those that take part."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(6, 40) for _ in range(3))

    def forward(self, x: Tensor, use: str = "abc") -> Tensor:
        return sum((self.get_submodule(name)(x).square() for name in use), x.new_zeros(()))


def _batch(step: int, rank: int) -> Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(100 * step + rank))


def _local(model: nn.Module, step: int, rank: int, use: str) -> list[Tensor]:
    """The gradients of one rank, zeros where it has none."""
    parameters = list(model.parameters())
    loss = model(_batch(step, rank), use).mean()
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def _training(rank: int) -> None:
    """Unused parameters, some of them on one rank only; accumulation; rebuilt buckets."""
    size = dist.get_world_size()
    for wrapper in WRAPPERS:
        bare = Branches()
        model: Any = wrapper(Branches(), bucket_cap_mb=5e-4, find_unused_parameters=True)
        state = Bf16Feedback()
        model.register_comm_hook(state, bf16_feedback)
        names = [name for name, _ in bare.named_parameters()]
        due = [torch.zeros_like(p, dtype=torch.float64) for p in bare.parameters()]
        total = [torch.zeros_like(p, dtype=torch.float64) for p in bare.parameters()]
        for step in range(9):
            uses = ["ab" if other == 0 else "a" for other in range(size)]
            quiet = step % 3 == 2
            if not quiet:
                model.zero_grad()
            with model.no_sync() if step % 3 == 1 else nullcontext():
                model(_batch(step, rank), uses[rank]).mean().backward()
            for other in range(size):
                for mean, gradient in zip(due, _local(bare, step, other, uses[other]), strict=True):
                    mean += gradient / size
            if step % 3 != 1:
                _add_gradients(model.module, total, names)
            error = max(float((t - d).abs().max()) for t, d in zip(total, due, strict=True))
            assert step % 3 == 1 or error < 2 * TOLERANCE, (wrapper, step, error)
        _check_equal(model)


def _add_gradients(module: nn.Module, total: list[Tensor], names: list[str]) -> None:
    for name, parameter, whole in zip(names, module.parameters(), total, strict=True):
        if name.startswith("c"):
            assert parameter.grad is None
        else:
            assert parameter.grad is not None
            whole += parameter.grad


def _check_equal(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            everyone = [torch.empty_like(parameter.grad) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, parameter.grad.contiguous())
            assert all(torch.equal(one, everyone[0]) for one in everyone)


@pytest.mark.parametrize("place", ["gloo, three ranks", "two and two"])
def test_training_gets_the_averages_in_either_wrapper(tmp_path: Path, place: str) -> None:
    """Summed over the steps: the error does not grow with their number."""
    run_everywhere(place, _training, tmp_path)


def _uneven(rank: int) -> None:
    model = DistributedDataParallel(Branches(), bucket_cap_mb=5e-4)
    model.register_comm_hook(Bf16Feedback(), bf16_feedback)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with model.join():
        for step in range(2 + rank):
            optimizer.zero_grad()
            model(_batch(step, rank)).mean().backward()
            optimizer.step()
    for parameter in model.parameters():
        everyone = [torch.empty_like(parameter) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, parameter.detach())
        assert all(torch.equal(one, everyone[0]) for one in everyone)


def test_ranks_with_fewer_batches_keep_up(tmp_path: Path) -> None:
    run_everywhere("two and two", _uneven, tmp_path)


def _new_buckets(rank: int) -> None:
    state, first, second = Bf16Feedback(), _parameters(), _parameters()
    gradient = _gradients(9, 1000)[rank]
    fresh = _averaged(state, gradient, first)
    assert not torch.equal(_averaged(state, gradient, first), fresh)
    assert torch.equal(_averaged(state, gradient, second), fresh)
    # A bucket of another length can only be another one.
    assert torch.equal(_averaged(state, gradient[:10], [*first, *second]), fresh[:10])
    copied = copy.deepcopy(state)
    assert torch.equal(_averaged(copied, gradient, [*first, *second]), fresh)
    # The copy's feedback is its own: the first state still has that of the first ten.
    assert not torch.equal(_averaged(state, gradient[:10], [*first, *second]), fresh[:10])


def _two_models(rank: int) -> None:
    """Both have a bucket 0, and their steps take turns."""
    shared, own = Bf16Feedback(), Bf16Feedback()
    first, second = _parameters(), _parameters()
    for step in range(4):
        gradient, other = _gradients(step, 1000)[rank], _gradients(step + 50, 10)[rank]
        assert torch.equal(_averaged(shared, gradient, first), _averaged(own, gradient, first))
        _averaged(shared, other, second)


def test_models_that_share_a_state_have_feedback_of_their_own(tmp_path: Path) -> None:
    run_ranks(_two_models, tmp_path / "store")


def test_feedback_is_dropped_with_its_bucket_and_not_copied(tmp_path: Path) -> None:
    run_ranks(_new_buckets, tmp_path / "store")


def _some_of_the_ranks(rank: int) -> None:
    pair = dist.new_group([0, 2])
    if rank == 1:
        return
    state, gradient = Bf16Feedback(pair), torch.full((5,), 1.0 + rank)
    bucket = GradientBucket(0, gradient, [gradient], _parameters(), True)
    assert bf16_feedback(state, bucket).wait().tolist() == [2.0] * 5
    with pytest.raises(RuntimeError, match="only be copied or pickled with the default"):
        copy.deepcopy(state)


def test_a_group_may_hold_some_of_the_ranks(tmp_path: Path) -> None:
    run_ranks(_some_of_the_ranks, tmp_path / "store", 3)


def _train_until_failure(rank: int) -> str:
    model = DistributedDataParallel(Branches())
    model.register_comm_hook(Bf16Feedback(), bf16_feedback)
    # The first step connects the hook's groups: if a rank died before, the error would be gloo's.
    model(_batch(0, rank)).mean().backward()
    if rank == 1:
        signal_soon(signal.SIGKILL)

    def train() -> None:
        while True:
            model(_batch(0, rank)).mean().backward()

    return error_of(train)


@pytest.mark.parametrize("hosts", [(), (0, 0, 1)], ids=["gloo", "shm+gloo"])
def test_a_rank_that_dies_is_an_error_on_the_others(tmp_path: Path, hosts: tuple[int, ...]) -> None:
    backend = "shm+gloo" if hosts else "gloo"
    results = run_with_casualties(
        _train_until_failure, tmp_path / "store", 3, hosts=hosts, backend=backend, group_timeout=5
    )
    assert sorted(results) == [0, 2]
    for error in results.values():
        # On gloo, what a rank hears first may be about another collective, in gloo's own words.
        by_gloo = not hosts and "gloo" in error
        assert "did not arrive" in error or "rank 1 (pid" in error or by_gloo, error
