"""With `overlap`, a step returns before the others' parameters are here, and no forward uses old
ones."""

from __future__ import annotations

import copy
import gc
import io
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn, optim

from dpbench.parallel import DistributedDataParallel as Ddp
from dpbench.parallel import ShardedOptimizer
from tests.parallel.ranks import run_ranks
from tests.parallel.shm.casualties import run_with_casualties

pytestmark = pytest.mark.slow

WIDTH = 8
STEPS = 4
LATE_SECONDS = 0.05
"""How much later than the other ranks rank 1 steps: a forward that did not wait would be over."""
_numbers = count()


class Tied(nn.Module):
    """Uses a parameter of a module that it has called before, one of a module that it never calls,
    some in a list, and one of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.never_called = nn.Linear(WIDTH, WIDTH)
        self.listed = nn.ParameterList([torch.ones(WIDTH), torch.zeros(WIDTH)])
        self.own = nn.Parameter(torch.ones(WIDTH))
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x) * self.own + self.never_called.weight.sum(0) + self.never_called.bias
        hidden = hidden * self.listed[0] + self.listed[1]
        return nn.functional.linear(self.last(hidden), self.first.weight)


class Choosing(nn.Module):
    """Calls one of two modules, as the samples have it."""

    def __init__(self) -> None:
        super().__init__()
        self.ways = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.ways[int(x[0, 0] > 0)](x)
        return out


class FrozenNorm(nn.Sequential):
    """Evaluates a module inside it while it trains itself."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH))
        self[1].eval()


def attention() -> nn.Module:
    """It never calls the `out_proj` inside it."""
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(nn.Unflatten(0, (3, 5)), encoder, nn.Flatten(0, 1))


class Fusing(nn.Module):
    """Calls the layer inside it only while it trains with gradients, as fused kernels have it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            out: Tensor = self.layer(x)
            return out
        return nn.functional.linear(x, self.layer.weight, self.layer.bias)


class Cautious(nn.Module):
    """Uses the weight of a layer before it calls it; evaluated, it calls another way."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        size = self.last.weight.norm() + sum(p.sum() for p in self.first.parameters())
        if self.training:
            x = nn.functional.linear(x, self.first.weight, self.first.bias)
        else:
            x = self.first(x)
        out: Tensor = self.last(x) / size
        return out


class Listing(nn.Module):
    """Keeps parameters in a list of its own, and reads them there, as nn.LSTM might."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)])
        self.weights = [layer.weight for layer in self.layers]

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = torch.tanh(nn.functional.linear(x, weight))
        return x


class Recurrent(nn.Module):
    """Its LSTM has such a list."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.lstm(x)[0])
        return out


def scripted_in_part() -> nn.Module:
    scripted = torch.jit.script(nn.Linear(WIDTH, WIDTH))
    return nn.Sequential(scripted, nn.Linear(WIDTH, WIDTH))


def compiled_in_part() -> nn.Module:
    inner = nn.Linear(WIDTH, WIDTH)
    inner.compile(backend="eager")
    return nn.Sequential(inner, nn.Linear(WIDTH, WIDTH))


def with_weight_norm() -> nn.Module:
    with pytest.warns(FutureWarning, match="weight_norm"):
        old = nn.utils.weight_norm(nn.Linear(WIDTH, WIDTH))
    return nn.Sequential(old, nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "layers": lambda: nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6))),
    "tied": Tied,
    "choosing": Choosing,
    "frozen norm": FrozenNorm,
    "attention": attention,
    "weight norm": with_weight_norm,
    "cautious": Cautious,
    "listing": Listing,
    "recurrent": Recurrent,
    "scripted": scripted_in_part,
    "compiled": compiled_in_part,
}


AT_ONCE = ("listing", "recurrent", "scripted", "compiled")
"""Models whose parameters are read past their modules."""


def built(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make().double()


def wrapped(make: Callable[[], nn.Module]) -> tuple[Ddp, ShardedOptimizer]:
    several_buckets = 600 / 2**20
    model = Ddp(built(make), bucket_cap_mb=several_buckets, find_unused_parameters=make is Choosing)
    plain = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, ShardedOptimizer(model, plain, overlap=True)


def batch(step: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(3, 5, WIDTH, generator=generator, dtype=torch.float64).flatten(0, 1)


def loss(model: nn.Module, step: int, rank: int) -> Tensor:
    return (model(batch(step, rank)) * torch.arange(WIDTH)).square().mean()


def step_late(rank: int, optimizer: ShardedOptimizer, *, at_once: bool = False) -> None:
    """Step; rank 1 does when the others have returned from it, which they could not by waiting,
    unless they are to have the parameters at once."""
    store, key = dist.distributed_c10d._get_default_store(), f"stepped {next(_numbers)}"
    if rank == 1:
        if not at_once:
            store.wait([f"{key} 0"], timedelta(seconds=10))
        time.sleep(LATE_SECONDS)
    optimizer.step()
    store.set(f"{key} {rank}", "")


class Reference:
    """One process that trains on the batches of all ranks."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        self.model = built(make)
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def step(self, step: int) -> None:
        self.optimizer.zero_grad()
        for rank in range(dist.get_world_size()):
            (loss(self.model, step, rank) / dist.get_world_size()).backward()
        self.optimizer.step()


def assert_close(ours: Any, theirs: Any, name: str = "") -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11, msg=lambda m: f"{name}: {m}")


def train(
    rank: int, model: Ddp, optimizer: ShardedOptimizer, step: int, *, at_once: bool = False
) -> Tensor:
    optimizer.zero_grad()
    found = loss(model, step, rank)
    found.backward()
    step_late(rank, optimizer, at_once=at_once)
    return found.detach()


def every_forward_uses_the_new_parameters(rank: int) -> None:
    for name, make in MODELS.items():
        model, optimizer = wrapped(make)
        reference = Reference(make)
        for step in range(STEPS):
            expected = loss(reference.model, step, rank).detach()
            found = train(rank, model, optimizer, step, at_once=name in AT_ONCE)
            assert_close(found, expected, name)
            reference.step(step)
        optimizer.settle()
        ours = dict(model.module.named_parameters())
        assert_close(ours, dict(reference.model.named_parameters()), name)


def an_evaluation_uses_the_new_parameters_too(rank: int) -> None:
    for make in (Fusing, Cautious):
        model, optimizer = wrapped(make)
        reference = Reference(make)
        for step, (trains, gradients) in enumerate(
            [(True, True), (False, True), (True, False)] * 2
        ):
            assert_close(train(rank, model, optimizer, step), loss(reference.model, step, rank))
            reference.step(step)
            for one in (model, reference.model):
                one.train(trains)
            with torch.set_grad_enabled(gradients):
                found, expected = (loss(m, step, rank) for m in (model.module, reference.model))
            assert_close(found, expected, f"{trains=} {gradients=}")
            for one in (model, reference.model):
                one.train()


def a_forward_begins_before_all_is_here(rank: int) -> None:
    """Rank 1 steps the last layers only when rank 0 is past its first one: who waited for all
    would wait forever."""
    model, optimizer = wrapped(MODELS["layers"])
    train(rank, model, optimizer, 0)
    loss(model, 1, rank).backward()
    store, key = dist.distributed_c10d._get_default_store(), "past the first layer"
    if rank == 0:
        model.module[0].register_forward_hook(lambda *_: store.set(key, ""))
    if rank == 1:
        last, step = optimizer._shares[0], optimizer._shares[0].step

        def late(groups: Any) -> bool:
            store.wait([key], timedelta(seconds=10))
            return step(groups)

        last.step = late  # type: ignore[method-assign]
    optimizer.step()
    loss(model, 2, rank)


def whatever_reads_through_the_modules_gets_new_values(rank: int) -> None:
    reads: list[Callable[[nn.Module], Any]] = [
        lambda module: module.state_dict(),
        lambda module: dict(module.named_parameters()),
        lambda module: copy.deepcopy(module).state_dict(),
        lambda module: loaded(module).state_dict(),
        lambda module: {k: dict(m._parameters) for k, m in module.named_children()},
        lambda module: {k: {**m._parameters} for k, m in module.named_children()},
        lambda module: {k: m._parameters.copy() for k, m in module.named_children()},
        lambda module: {k: [*m._parameters.values()] for k, m in module.named_children()},
        lambda module: module[2].weight.clone(),
        lambda module: module[2]._parameters.setdefault("weight").clone(),
        lambda module: popped(module[2]._parameters).clone(),
        lambda module: module[2]._parameters.get("bias").clone(),
        lambda module: optim.swa_utils.AveragedModel(module).module.state_dict(),
    ]
    model, optimizer = wrapped(MODELS["layers"])
    reference = Reference(MODELS["layers"])
    for step, read in enumerate(reads):
        train(rank, model, optimizer, step)
        reference.step(step)
        assert_close(read(model.module), read(reference.model), f"read {step}")
        assert_close(copy.deepcopy(model).module.state_dict(), reference.model.state_dict())


def popped(parameters: dict[str, Any]) -> Tensor:
    """Its last parameter, which is put back."""
    name, value = parameters.popitem()
    parameters[name] = value
    parameters[name] = parameters.pop(name)
    found: Tensor = value
    return found


class Halves(nn.Module):
    """Two parts, each of which a wrapper trains, as in a GAN."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.parts[1](self.parts[0](x))
        return out


def two_wrappers_train_parts_of_one_module(rank: int) -> None:
    module = built(Halves)
    pairs = []
    for part in range(2):
        ignored = [f"parts.{1 - part}.{name}" for name in ("weight", "bias")]
        Ddp._set_params_and_buffers_to_ignore_for_model(module, ignored)
        model = Ddp(module)
        own = module.parts[part].parameters()  # type: ignore[index, union-attr]
        pairs.append((model, ShardedOptimizer(model, optim.SGD(own, lr=0.05), overlap=True)))
    reference = built(Halves)
    plains = [optim.SGD(part.parameters(), lr=0.05) for part in reference.parts]  # type: ignore
    for step in range(6):
        model, optimizer = pairs[step % 2]
        module.zero_grad()
        found = loss(model, step, rank)
        assert_close(found.detach(), loss(reference, step, rank).detach(), f"step {step}")
        found.backward()
        for parameter in module.parts[1 - step % 2].parameters():  # type: ignore[index, union-attr]
            parameter.grad = None
        step_late(rank, optimizer)
        reference.zero_grad()
        for peer in range(dist.get_world_size()):
            (loss(reference, step, peer) / dist.get_world_size()).backward()
        plains[step % 2].step()
    del pairs, model, optimizer
    assert all(type(one._parameters) is dict for one in module.modules())


def a_forked_process_is_told(rank: int) -> None:
    model, optimizer = wrapped(MODELS["layers"])
    train(rank, model, optimizer, 0)
    if rank == 0 and (child := os.fork()):
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    elif rank == 0:
        try:
            model.state_dict()
        except RuntimeError as error:
            os._exit(7 if "forked while parameters were on their way" in str(error) else 1)
        os._exit(2)
    optimizer.settle()


def a_handler_of_a_signal_may_read_what_is_awaited(rank: int) -> None:
    """It arrives in the wait of the main thread, which goes on afterwards."""
    model, optimizer = wrapped(MODELS["layers"])
    reference = Reference(MODELS["layers"])
    seen: list[Any] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(model.module.state_dict()))
    optimizer.zero_grad()
    loss(model, 0, rank).backward()
    if rank == 1:
        time.sleep(6 * LATE_SECONDS)
    optimizer.step()
    reference.step(0)
    threading.Timer(2 * LATE_SECONDS, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    assert_close(model.module.state_dict(), reference.model.state_dict())
    for _ in range(1000):
        if seen:
            break
        time.sleep(0.01)
    assert_close(seen[0], reference.model.state_dict())
    signal.signal(signal.SIGUSR1, before)


def what_is_changed_in_place_stays_changed(rank: int) -> None:
    model, optimizer = wrapped(MODELS["layers"])
    for step in range(2):
        train(rank, model, optimizer, step)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        optimizer.settle()
        assert not any(parameter.any() for parameter in model.parameters())
    train(rank, model, optimizer, 2)
    zeros = {name: torch.zeros_like(value) for name, value in model.module[0].state_dict().items()}
    train(rank, model, optimizer, 3)
    model.module[0].load_state_dict(zeros)
    optimizer.settle()
    assert not any(value.any() for value in model.module[0].parameters())


class Around(nn.Module):
    """Takes the place of a layer, and has its parameters."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.kernel, self.shift = layer.weight, layer.bias

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.kernel, self.shift)


def a_module_that_takes_the_place_of_another_waits_too(rank: int) -> None:
    model, optimizer = wrapped(MODELS["layers"])
    reference = Reference(MODELS["layers"])
    for step in range(STEPS):
        assert_close(train(rank, model, optimizer, step), loss(reference.model, step, rank))
        reference.step(step)
        if step == 1:
            for module in (model.module, reference.model):
                module[3] = Around(module[3])  # type: ignore[index, operator]


def copies_and_files_are_free_of_it(rank: int) -> None:
    model, optimizer = wrapped(MODELS["layers"])
    train(rank, model, optimizer, 0)
    for one in (copy.deepcopy(model.module), loaded(model.module), copy.deepcopy(model)):
        assert all(type(part._parameters) is dict for part in one.modules())
    stored = io.BytesIO()
    torch.save(model.module, stored)
    assert b"dpbench" not in stored.getvalue()
    torch.jit.script(model.module)


def loaded(module: nn.Module) -> nn.Module:
    """What comes back of it from a file."""
    stored = io.BytesIO()
    torch.save(module, stored)
    stored.seek(0)
    found: nn.Module = torch.load(stored, weights_only=False)
    return found


def modules_are_as_before_when_the_optimizer_is_gone(rank: int) -> None:
    model, optimizer = wrapped(MODELS["layers"])
    train(rank, model, optimizer, 0)
    module = model.module
    expected = optimizer.gradients()  # only so that all ranks are past their step
    flat = weakref.ref(optimizer._shares[0].bucket.gradients)
    gc.disable()
    try:
        del optimizer
        assert all(type(one._parameters) is dict for one in module.modules())
        del model, expected
        assert flat() is None
    finally:
        gc.enable()


def a_compiled_wrapper_uses_the_new_parameters(rank: int) -> None:
    for before in (True, False):
        model = Ddp(built(MODELS["layers"]), bucket_cap_mb=600 / 2**20)
        if before:
            model.compile(backend="eager")
        plain = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        optimizer = ShardedOptimizer(model, plain, overlap=True)
        called = model if before else torch.compile(model, backend="eager")
        reference = Reference(MODELS["layers"])
        for step in range(STEPS):
            optimizer.zero_grad()
            found = loss(called, step, rank)
            found.backward()
            step_late(rank, optimizer, at_once=before)
            assert_close(found, loss(reference.model, step, rank), f"compiled {before=}")
            reference.step(step)


CASES = [
    every_forward_uses_the_new_parameters,
    an_evaluation_uses_the_new_parameters_too,
    a_forward_begins_before_all_is_here,
    whatever_reads_through_the_modules_gets_new_values,
    what_is_changed_in_place_stays_changed,
    a_module_that_takes_the_place_of_another_waits_too,
    two_wrappers_train_parts_of_one_module,
    a_forked_process_is_told,
    a_handler_of_a_signal_may_read_what_is_awaited,
    copies_and_files_are_free_of_it,
    modules_are_as_before_when_the_optimizer_is_gone,
    a_compiled_wrapper_uses_the_new_parameters,
]


@pytest.mark.parametrize("ranks", [2, 3])
def test_parameters_arrive_in_the_next_forward(tmp_path: Path, ranks: int) -> None:
    run_ranks(CASES, tmp_path / "store", ranks, timeout=120.0)


def nothing_is_under_way(rank: int) -> None:
    model, optimizer = wrapped(MODELS["layers"])
    loss(model, 0, rank).backward()
    optimizer.step()
    assert all(type(one._parameters) is dict for one in model.modules())


def test_nothing_is_under_way_where_ranks_share_memory(tmp_path: Path) -> None:
    run_ranks(nothing_is_under_way, tmp_path / "store", backend="shm")


def rank_2_dies_before_its_step(rank: int) -> list[float]:
    """Seconds of each look at the parameters, none of which arrives."""
    model, optimizer = wrapped(MODELS["layers"])
    loss(model, 0, rank).backward()
    if rank == 2:
        time.sleep(6 * LATE_SECONDS)  # the others' backward needs what it has sent
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.step()
    seconds = []
    for look in (model.state_dict, lambda: loss(model, 0, rank), optimizer.settle):
        begun = time.monotonic()
        with pytest.raises(RuntimeError, match="did not arrive, and are lost on this rank"):
            look()
        seconds.append(time.monotonic() - begun)
    return seconds


def test_a_rank_that_died_is_waited_for_once(tmp_path: Path) -> None:
    by_rank = run_with_casualties(
        *(rank_2_dies_before_its_step, tmp_path / "store", 3),
        lost=2,
        group_timeout=4.0,
        backend="gloo",
    )
    for _, second, third in by_rank.values():
        assert second + third < 1.0


LAST_STEP = """
import sys, time
from datetime import timedelta
import torch, torch.distributed as dist
import dpbench

rank, store, saved = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group(
    "gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2, timeout=timedelta(seconds=10)
)
torch.manual_seed(0)
model = dpbench.DistributedDataParallel(torch.nn.Linear(64, 64))
plain = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = dpbench.ShardedOptimizer(model, plain, overlap=True)
model(torch.ones(4, 64)).sum().backward()
if rank == 0:
    time.sleep(1)
optimizer.step()
if rank == 0:
    torch.save(model.module.state_dict(), saved)
dist.destroy_process_group()
"""


def test_a_rank_that_is_done_first_sends_its_last_shares_before_it_leaves(tmp_path: Path) -> None:
    words = [str(tmp_path / "store"), str(tmp_path / "saved")]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen([sys.executable, "-c", LAST_STEP, str(rank), *words], env=environment)
        for rank in range(2)
    ]
    assert [rank.wait(60) for rank in ranks] == [0, 0]
    torch.manual_seed(0)
    before = nn.Linear(64, 64)
    expected = before.weight - 0.1 * 4 * torch.ones(64, 64)
    torch.testing.assert_close(torch.load(tmp_path / "saved")["weight"], expected.detach())
