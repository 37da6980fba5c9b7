"""Sharded steps give the parameters, and the state, of the plain optimizer in one process."""

from __future__ import annotations

import copy
import gc
import io
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.distributed.algorithms.join import Join

from dpbench.parallel import DistributedDataParallel as Ddp
from dpbench.parallel import ShardedOptimizer, check_sync
from dpbench.parallel.sharded.optimizer import ELEMENTWISE
from tests.parallel.ranks import run_ranks

pytestmark = pytest.mark.slow

Make = Callable[[Iterable[Any]], optim.Optimizer]
MAKES: dict[str, Make] = {
    "SGD": lambda params: optim.SGD(params, lr=0.05),
    "momentum": lambda params: optim.SGD(
        params, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01
    ),
    "Adam": lambda params: optim.Adam(params, lr=0.01, amsgrad=True),
    "AdamW": lambda params: optim.AdamW(params, lr=0.01, weight_decay=0.1),
    "AdamW foreach": lambda params: optim.AdamW(params, lr=0.01, foreach=True),
    "AdamW fused": lambda params: optim.AdamW(params, lr=0.01, fused=True),
    "AdamW maximize": lambda params: optim.AdamW(params, lr=0.01, maximize=True),
    "Adadelta": lambda params: optim.Adadelta(params, lr=0.5),
    "Adagrad": lambda params: optim.Adagrad(params, lr=0.05, initial_accumulator_value=0.1),
    "Adamax": lambda params: optim.Adamax(params, lr=0.01),
    "NAdam": lambda params: optim.NAdam(params, lr=0.01),
    "RAdam": lambda params: optim.RAdam(params, lr=0.01),
    "RMSprop": lambda params: optim.RMSprop(params, lr=0.01, momentum=0.5, centered=True),
    "Rprop": lambda params: optim.Rprop(params, lr=0.01),
}
adamw = MAKES["AdamW"]


class Model(nn.Module):
    """Layers of several shapes, a single number, nothing, and one that calls may leave out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 9)
        self.second = nn.Linear(9, 11, bias=False)
        self.side = nn.Linear(9, 11)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.nothing = nn.Parameter(torch.empty(0))
        self.norm = nn.LayerNorm(11)
        self.double()

    def forward(self, x: Tensor, side: bool = True) -> Tensor:
        hidden = torch.tanh(self.first(x)) * self.scale + self.nothing.sum()
        out = self.second(hidden)
        return self.norm(out + self.side(hidden) if side else out)


def batch(seed: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * seed + rank)
    return torch.randn(5, 6, generator=generator, dtype=torch.float64)


def loss(module: nn.Module, seed: int, rank: int, **options: Any) -> Tensor:
    return (module(batch(seed, rank), **options) * torch.arange(11)).square().mean()


def wrapped(make: Make = adamw, **options: Any) -> tuple[Ddp, ShardedOptimizer]:
    model = Ddp(Model(), **options)
    return model, ShardedOptimizer(model, make(model.parameters()))


def train(
    model: nn.Module, optimizer: optim.Optimizer, rank: int, steps: Iterable[int], **options: Any
) -> None:
    for seed in steps:
        optimizer.zero_grad()
        loss(model, seed, rank, **options).backward()
        optimizer.step()


class Reference:
    """One process with the mean gradients of all ranks."""

    def __init__(self, make: Make = adamw, model: nn.Module | None = None) -> None:
        self.model = Model() if model is None else model
        self.optimizer = make(self.model.parameters())

    def add_gradients(self, seed: int, used: tuple[int, ...] | None = None) -> None:
        size = dist.get_world_size()
        for rank in range(size):
            side = used is None or rank in used
            (loss(self.model, seed, rank, side=side) / size).backward()

    def step(self, seed: int) -> None:
        self.optimizer.zero_grad()
        self.add_gradients(seed)
        self.optimizer.step()


def assert_same(model: nn.Module, reference: Reference) -> None:
    theirs = dict(reference.model.named_parameters())
    ours = dict((model.module if isinstance(model, Ddp) else model).named_parameters())
    torch.testing.assert_close(
        {name: p.detach() for name, p in ours.items()},
        {name: p.detach() for name, p in theirs.items()},
        rtol=1e-10,
        atol=1e-12,
    )


def assert_same_state(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours["param_groups"] == theirs["param_groups"]
    expected = {  # plain optimizers keep state of a parameter without elements, too
        index: state
        for index, state in theirs["state"].items()
        if all(value.numel() for value in state.values() if isinstance(value, Tensor))
    }
    torch.testing.assert_close(ours["state"], expected, rtol=1e-9, atol=1e-12)


def every_optimizer_makes_the_plain_steps(rank: int) -> None:
    for make in MAKES.values():
        model, optimizer = wrapped(make)
        reference = Reference(make)
        for seed in range(4):
            train(model, optimizer, rank, [seed])
            assert all(p.grad is None for p in model.parameters())
            reference.step(seed)
            assert_same(model, reference)
        check_sync(model)
        assert_same_state(optimizer.state_dict(), reference.optimizer.state_dict())
        assert not optimizer.state


def groups_keep_their_hyperparameters_and_schedules(rank: int) -> None:
    def make(params: Iterable[nn.Parameter]) -> optim.Optimizer:
        by_size: dict[bool, list[nn.Parameter]] = {True: [], False: []}
        for parameter in params:
            by_size[parameter.dim() > 1].append(parameter)
        groups = [
            {"params": by_size[True], "weight_decay": 0.3},
            {"params": by_size[False], "lr": 0.1, "betas": (0.5, 0.9)},
        ]
        return optim.AdamW(groups, lr=0.01)

    model, optimizer = wrapped(make)
    reference = Reference(make)
    schedules = [
        optim.lr_scheduler.OneCycleLR(one, max_lr=[0.05, 0.2], total_steps=10)
        for one in (optimizer, reference.optimizer)
    ]
    for seed in range(5):
        train(model, optimizer, rank, [seed])
        reference.step(seed)
        for schedule in schedules:
            schedule.step()
        assert_same(model, reference)
    assert_same_state(optimizer.state_dict(), reference.optimizer.state_dict())


def a_schedule_of_the_plain_optimizer_goes_on_after_a_state_is_loaded(rank: int) -> None:
    model = Ddp(Model())
    plain = optim.SGD(model.parameters(), lr=0.8)
    schedule = optim.lr_scheduler.ExponentialLR(plain, 0.5)
    optimizer = ShardedOptimizer(model, plain)
    train(model, optimizer, rank, [0])
    schedule.step()
    optimizer.load_state_dict(optimizer.state_dict())
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.2


def memory_returns_with_the_last_reference(rank: int) -> None:
    model, optimizer = wrapped()
    train(model, optimizer, rank, [0])
    flat = weakref.ref(optimizer._shares[0].bucket.values)
    gc.disable()
    try:
        del model, optimizer
        assert flat() is None
    finally:
        gc.enable()


def gradients_accumulate_until_a_step(rank: int) -> None:
    model, optimizer = wrapped()
    reference = Reference()
    for seed in (0, 10, 20):
        optimizer.zero_grad()
        reference.optimizer.zero_grad()
        with model.no_sync():
            loss(model, seed, rank).backward()
        loss(model, seed + 1, rank).backward()
        loss(model, seed + 2, rank).backward()
        for part in range(3):
            reference.add_gradients(seed + part)
        optimizer.step()
        reference.optimizer.step()
        assert_same(model, reference)


def a_step_uses_its_gradients_up(rank: int) -> None:
    model, optimizer = wrapped()
    reference = Reference()
    for seed in range(3):
        loss(model, seed, rank).backward()  # without zero_grad
        optimizer.step()
        reference.step(seed)
    assert_same(model, reference)
    with pytest.raises(RuntimeError, match="no backward has reduced gradients since"):
        optimizer.step()
    loss(model, 3, rank).backward()
    model.zero_grad()  # of the wrapper, as users write it
    optimizer.step()
    assert_same(model, reference)
    loss(model, 3, rank).backward()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    reference.optimizer.zero_grad()
    reference.add_gradients(3)
    reference.optimizer.zero_grad(set_to_none=False)
    reference.optimizer.step()
    assert_same(model, reference)


def clipping_takes_the_norm_of_all_shares(rank: int) -> None:
    for norm_type in (2.0, 1.0, float("inf")):
        model, optimizer = wrapped(MAKES["SGD"])
        reference = Reference(MAKES["SGD"])
        for seed, limit in ((0, 0.5), (1, 1e9)):
            optimizer.zero_grad()
            loss(model, seed, rank).backward()
            reference.optimizer.zero_grad()
            reference.add_gradients(seed)
            norm = optimizer.clip_grad_norm_(limit, norm_type)
            having = [p for p in reference.model.parameters() if p.numel()]
            theirs = nn.utils.clip_grad_norm_(having, limit, norm_type)
            torch.testing.assert_close(norm, theirs)
            optimizer.step()
            reference.optimizer.step()
            assert_same(model, reference)
    with pytest.raises(ValueError, match="norm_type=0"):
        optimizer.clip_grad_norm_(1.0, 0)
    loss(model, 0, rank).mul(float("inf") if rank == 0 else 1.0).backward()
    with pytest.raises(RuntimeError, match="non-finite"):
        optimizer.clip_grad_norm_(1.0, error_if_nonfinite=True)
    for poisoned in range(dist.get_world_size()):
        model, optimizer = wrapped()
        loss(model, 0, rank).backward()
        if rank == poisoned:
            optimizer._shares[0].bucket.own_gradients[0] = float("nan")
        for norm_type in (2.0, float("inf")):
            assert optimizer.clip_grad_norm_(1.0, norm_type).isnan()


def whole_gradients_can_be_gathered(rank: int) -> None:
    model, optimizer = wrapped()
    reference = Reference()
    assert optimizer.gradients() == {}
    loss(model, 0, rank).backward()
    reference.add_gradients(0)
    expected = [parameter.grad for parameter in reference.model.parameters()]
    for _ in range(2):
        found = optimizer.gradients()
        torch.testing.assert_close([found[p] for p in model.parameters()], expected)
        if optimizer._shares[0].bucket.is_due:
            optimizer.step()


class Dtypes(nn.Module):
    """Parameters of four dtypes, one of them complex."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kinds = nn.ParameterDict(
            {
                str(dtype).replace(".", "_"): nn.Parameter(torch.randn(7, 3, dtype=dtype))
                for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.complex128)
            }
        )

    def forward(self, x: Tensor, side: bool = True) -> Tensor:
        rows = [torch.view_as_real(p).sum(-1) if p.is_complex() else p for p in self.kinds.values()]
        # Side by side, so that what bfloat16 rounds reaches no other dtype.
        return torch.stack([(x[:, :3].to(row.dtype) @ row.T).double() for row in rows])


def dtypes_have_buckets_of_their_own(rank: int) -> None:
    for name in ("SGD", "AdamW"):
        model = Ddp(Dtypes())
        optimizer = ShardedOptimizer(model, MAKES[name](model.parameters()))
        reference = Reference(MAKES[name], Dtypes())
        for seed in range(3):
            optimizer.zero_grad()
            model(batch(seed, rank)).square().mean().backward()
            optimizer.step()
            reference.optimizer.zero_grad()
            for other in range(dist.get_world_size()):
                part = reference.model(batch(seed, other)).square().mean()
                (part / dist.get_world_size()).backward()
            reference.optimizer.step()
        for (kind, ours), theirs in zip(
            model.module.kinds.items(), reference.model.parameters(), strict=True
        ):
            tolerance = {"torch_bfloat16": 5e-2, "torch_float32": 1e-4}.get(kind, 1e-10)
            torch.testing.assert_close(
                ours.detach(), theirs.detach(), rtol=tolerance, atol=tolerance
            )


def frozen_parameters_stay_as_they_are(rank: int) -> None:
    module = Model()
    module.first.bias.requires_grad = False
    model = Ddp(module)
    optimizer = ShardedOptimizer(model, adamw(model.parameters()))
    other = Model()
    other.first.bias.requires_grad = False
    reference = Reference(model=other)
    for seed in range(4):
        for one in (module, other):
            one.side.requires_grad_(seed % 2 == 0)
        train(model, optimizer, rank, [seed])
        reference.step(seed)
        assert_same(model, reference)
    state = optimizer.state_dict()
    assert_same_state(state, reference.optimizer.state_dict())
    steps = {int(one["step"]) for one in state["state"].values()}
    assert steps == {2, 4}


def unused_parameters_keep_state_of_their_own(rank: int) -> None:
    for name in ("AdamW", "momentum"):
        for uses in ([(0, 1), (), (1,), (), (0,)], [(), (1,), (0, 1)]):
            model, optimizer = wrapped(MAKES[name], find_unused_parameters=True)
            reference = Reference(MAKES[name])
            for seed, used in enumerate(uses):
                train(model, optimizer, rank, [seed], side=rank in used)
                reference.optimizer.zero_grad()
                reference.add_gradients(seed, used)
                reference.optimizer.step()
                assert_same(model, reference)
            assert_same_state(optimizer.state_dict(), reference.optimizer.state_dict())


def a_static_graph_may_leave_parameters_unused(rank: int) -> None:
    model, optimizer = wrapped(static_graph=True, bucket_cap_mb=1e-4)
    reference = Reference()
    for seed in range(3):
        train(model, optimizer, rank, [seed], side=False)
        reference.optimizer.zero_grad()
        reference.add_gradients(seed, ())
        reference.optimizer.step()
    assert_same(model, reference)


def checkpoints_fit_the_plain_optimizer_both_ways(rank: int) -> None:
    for name in ("AdamW", "momentum", "Adagrad"):
        make = MAKES[name]
        model, optimizer = wrapped(make)
        train(model, optimizer, rank, range(3))
        saved = io.BytesIO()
        torch.save([model.module.state_dict(), optimizer.state_dict()], saved)
        saved.seek(0)
        weights, state = torch.load(saved, weights_only=True)
        reference = Reference(make)
        reference.model.load_state_dict(weights)
        reference.optimizer.load_state_dict(state)
        train(model, optimizer, rank, range(3, 5))
        for seed in range(3, 5):
            reference.step(seed)
        assert_same(model, reference)
        other, its = wrapped(make)
        other.module.load_state_dict(reference.model.state_dict())
        its.load_state_dict(reference.optimizer.state_dict())
        train(other, its, rank, [5])
        reference.step(5)
        assert_same(other, reference)
        resumed = make(Model().parameters())
        third = Ddp(copy.deepcopy(reference.model))
        resumed = make(third.parameters())
        resumed.load_state_dict(reference.optimizer.state_dict())
        continued = ShardedOptimizer(third, resumed)
        train(third, continued, rank, [6])
        reference.step(6)
        assert_same(third, reference)


def a_rank_holds_its_share_of_the_state_only(rank: int) -> None:
    torch.manual_seed(0)
    model = Ddp(nn.Sequential(*(nn.Linear(40, 40) for _ in range(6))).double(), bucket_cap_mb=0.02)
    optimizer = ShardedOptimizer(model, adamw(model.parameters()))
    model(torch.randn(2, 40, dtype=torch.float64)).sum().backward()
    optimizer.step()
    held = sum(
        value.numel()
        for share in optimizer._shares
        for state in share.states().values()
        for name, value in state.items()
        if name != "step"
    )
    everything = 2 * sum(p.numel() for p in model.parameters())
    assert held <= everything * (1 / dist.get_world_size() + 0.05)
    assert len(optimizer._shares) > 2


def what_makes_no_sense_is_refused(rank: int) -> None:
    model = Ddp(Model())
    plain = adamw(model.parameters())
    with pytest.raises(TypeError, match="got a Model, expected a dpbench"):
        ShardedOptimizer(model.module, plain)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got LBFGS, expected one of .* SGD, Adam, AdamW"):
        ShardedOptimizer(model, optim.LBFGS(model.parameters()))
    with pytest.raises(ValueError, match=r"'norm\.bias' is not in the optimizer"):
        ShardedOptimizer(model, adamw(list(model.parameters())[:-1]))
    stranger = nn.Parameter(torch.zeros(3))
    with pytest.raises(ValueError, match=r"shape \(3,\) that the model does not reduce"):
        ShardedOptimizer(model, adamw([*model.parameters(), stranger]))
    with pytest.raises(ValueError, match="differentiable=True"):
        ShardedOptimizer(model, optim.SGD(model.parameters(), lr=1.0, differentiable=True))
    optimizer = ShardedOptimizer(model, plain)
    with pytest.raises(RuntimeError, match="another ShardedOptimizer"):
        ShardedOptimizer(model, adamw(model.parameters()))
    for call in (plain.step, plain.state_dict, lambda: plain.load_state_dict({})):
        with pytest.raises(RuntimeError, match="stepped by a ShardedOptimizer"):
            call()
    with pytest.raises(RuntimeError, match="parameter groups are fixed"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    with pytest.raises(RuntimeError, match="got a communication hook"):
        model.register_comm_hook(None, lambda state, bucket: torch.futures.Future())
    with pytest.raises(RuntimeError, match=r"got join\(\)"):
        model.join()
    with pytest.raises(RuntimeError, match=r"got join\(\)"):
        Join([model])
    with model.no_sync():
        loss(model, 0, rank).backward()
    with pytest.raises(RuntimeError, match=r"'scale' is not reduced; .* no_sync"):
        optimizer.step()
    optimizer.zero_grad()
    loss(model, 0, rank).backward()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.zeros(()))
    with pytest.raises(RuntimeError, match="got a GradScaler"):
        scaler.step(optimizer)
    model.module.scale.data = model.module.scale.data.clone()
    with pytest.raises(RuntimeError, match="'scale' has other memory"):
        optimizer.step()


def gradients_that_cannot_be_sharded_are_refused(rank: int) -> None:
    hooked = Ddp(Model())
    hooked.register_comm_hook(None, lambda state, bucket: torch.futures.Future())
    with pytest.raises(RuntimeError, match="got a model with a communication hook"):
        ShardedOptimizer(hooked, adamw(hooked.parameters()))
    embedding = Ddp(nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Linear(4, 2)))
    with pytest.raises(RuntimeError, match=r"got sparse gradients for '0.weight'"):
        ShardedOptimizer(embedding, adamw(embedding.parameters()))
    module = Model()
    first, second = Ddp(module), Ddp(module)
    with pytest.raises(ValueError, match="is in several wrapped modules"):
        ShardedOptimizer(first, adamw(second.parameters()))


def ranks_must_have_the_same_groups(rank: int) -> None:
    model = Ddp(Model())
    parameters = list(model.parameters())
    split = 3 + rank
    groups = [{"params": parameters[:split]}, {"params": parameters[split:]}]
    with pytest.raises(RuntimeError, match="ShardedOptimizer: expected the same on all ranks"):
        ShardedOptimizer(model, optim.AdamW(groups))


def a_saved_tensor_that_a_step_has_changed_is_noticed(rank: int) -> None:
    model, optimizer = wrapped()
    kept = model.module.second(torch.randn(2, 9, dtype=torch.float64, requires_grad=True))
    train(model, optimizer, rank, [0])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.sum().backward()


CASES = [
    every_optimizer_makes_the_plain_steps,
    groups_keep_their_hyperparameters_and_schedules,
    a_schedule_of_the_plain_optimizer_goes_on_after_a_state_is_loaded,
    memory_returns_with_the_last_reference,
    gradients_accumulate_until_a_step,
    a_step_uses_its_gradients_up,
    clipping_takes_the_norm_of_all_shares,
    whole_gradients_can_be_gathered,
    dtypes_have_buckets_of_their_own,
    frozen_parameters_stay_as_they_are,
    unused_parameters_keep_state_of_their_own,
    a_static_graph_may_leave_parameters_unused,
    checkpoints_fit_the_plain_optimizer_both_ways,
    a_rank_holds_its_share_of_the_state_only,
    what_makes_no_sense_is_refused,
    gradients_that_cannot_be_sharded_are_refused,
    a_saved_tensor_that_a_step_has_changed_is_noticed,
]


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_two_ranks_step_shares(tmp_path: Path, backend: str) -> None:
    cases = [*CASES, ranks_must_have_the_same_groups]
    run_ranks(cases, tmp_path / "store", timeout=120.0, backend=backend)


@pytest.mark.parametrize(("ranks", "backend"), [(1, "gloo"), (3, "gloo"), (3, "shm"), (4, "shm")])
def test_other_numbers_of_ranks_step_shares(tmp_path: Path, ranks: int, backend: str) -> None:
    cases = [case for case in CASES if case is not unused_parameters_keep_state_of_their_own]
    run_ranks(cases, tmp_path / "store", ranks, timeout=120.0, backend=backend)


def test_every_optimizer_that_is_offered_is_tried() -> None:
    tried = {type(make([nn.Parameter(torch.zeros(1))])) for make in MAKES.values()}
    assert tried == set(ELEMENTWISE)
