"""Gradients that users keep, prepare, change, or have in two wrappers."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dpbench.parallel import DistributedDataParallel as Ddp
from dpbench.parallel.ddp import holders
from tests.parallel.ddp.one_process import (
    assert_same,
    batches,
    gradients,
    mean_gradients,
    perceptron,
    step,
)
from tests.parallel.ranks import run_ranks

STEPS = 4


def expected_at(number: int, make: Callable[[], nn.Module] = perceptron) -> dict[str, Tensor]:
    found = mean_gradients(make, lambda module, rank: step(module, number, rank))
    return {name: gradient for name, gradient in found.items() if gradient is not None}


def scaled_by_data(gradient: Tensor) -> None:
    gradient.data = gradient.data * 0.5


def another_shape(gradient: Tensor) -> None:
    gradient.unsqueeze_(0)


def another_memory(gradient: Tensor) -> None:
    gradient.set_(torch.zeros(3, dtype=gradient.dtype))


def what_is_done_to_a_gradient_moves_no_bucket(rank: int) -> None:
    for change in (scaled_by_data, another_shape, another_memory):
        ddp = Ddp(perceptron())
        for number in range(STEPS):
            ddp.zero_grad()
            step(ddp, number, rank)
            assert_same(gradients(ddp), expected_at(number))
            for parameter in ddp.parameters():
                change(parameter.grad)


def a_gradient_that_is_zeroed_in_place_may_have_been_given_other_memory(rank: int) -> None:
    ddp = Ddp(perceptron())
    for number in range(STEPS):
        ddp.zero_grad(set_to_none=False)
        step(ddp, number, rank)
        assert_same(gradients(ddp), expected_at(number))
        for parameter in ddp.parameters():
            scaled_by_data(parameter.grad)


def images(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 2), nn.Tanh(), nn.Conv2d(4, 2, 1)).double()


def a_module_may_become_channels_last_between_steps(rank: int) -> None:
    def run(module: nn.Module, rank: int) -> None:
        pixels = batches(rank, 4, 5).reshape(2, 3, 4, 5)
        module(pixels).pow(2).mean().backward()

    ddp = Ddp(images(0))
    for number in range(STEPS):
        if number == 2:
            ddp.module.to(memory_format=torch.channels_last)
        ddp.zero_grad()
        run(ddp, rank)
        assert_same(gradients(ddp), mean_gradients(lambda: images(0), run))


def gradients_kept_of_several_losses_stay_what_they_were(rank: int) -> None:
    kept: list[list[Tensor]] = []
    ddp = Ddp(perceptron())
    for number in range(STEPS):
        ddp.zero_grad()
        step(ddp, number, rank)
        # As they are, and as views of them.
        kept.append([p.grad if number % 2 else p.grad.view(-1) for p in ddp.parameters()])
    for number, gradients_then in enumerate(kept):
        for gradient, want in zip(gradients_then, expected_at(number).values(), strict=True):
            torch.testing.assert_close(gradient.view(-1), want.view(-1))


def gradients_that_lie_in_a_tensor_of_the_users_are_averaged_there(rank: int) -> None:
    ddp = Ddp(perceptron())
    flat = torch.zeros(sum(p.numel() for p in ddp.parameters()), dtype=torch.float64)
    parts = flat.split([p.numel() for p in ddp.parameters()])
    for parameter, part in zip(ddp.parameters(), parts, strict=True):
        parameter.grad = part.view_as(parameter)
    for number in range(STEPS):
        flat.zero_()
        step(ddp, number, rank)
        want = torch.cat([gradient.view(-1) for gradient in expected_at(number).values()])
        torch.testing.assert_close(flat, want)


def prepared_gradients_that_are_held_one_by_one_are_averaged_there(rank: int) -> None:
    ddp = Ddp(perceptron())
    held = [torch.zeros_like(parameter) for parameter in ddp.parameters()]
    for parameter, gradient in zip(ddp.parameters(), held, strict=True):
        parameter.grad = gradient
    for number in range(STEPS):
        for gradient in held:
            gradient.zero_()
        step(ddp, number, rank)
        for gradient, want in zip(held, expected_at(number).values(), strict=True):
            torch.testing.assert_close(gradient, want)


def gradients_kept_from_the_first_step_get_those_of_the_later_ones(rank: int) -> None:
    ddp = Ddp(perceptron())
    step(ddp, 0, rank)
    kept = [parameter.grad for parameter in ddp.parameters()]
    for number in range(1, STEPS):
        torch._foreach_zero_(kept)
        step(ddp, number, rank)
        for gradient, want in zip(kept, expected_at(number).values(), strict=True):
            torch.testing.assert_close(gradient, want)


def a_gradient_that_nobody_else_has_lies_in_the_same_memory_in_each_step(rank: int) -> None:
    ddp = Ddp(perceptron())
    addresses = []
    for number in range(STEPS):
        ddp.zero_grad()
        with ddp.no_sync():
            step(ddp, number, rank)
        step(ddp, number, rank)
        addresses.append([parameter.grad.data_ptr() for parameter in ddp.parameters()])
    assert addresses[1:] == [addresses[1]] * (STEPS - 1)  # the first one is before the rebuild
    assert max(addresses[-1]) - min(addresses[-1]) < 1024  # in one bucket


class Task(nn.Module):
    def __init__(self, trunk: nn.Module, outputs: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(4, outputs).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.trunk(x)))


def tasks(wrap: Callable[[nn.Module], nn.Module]) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    trunk = nn.Linear(6, 4).double()
    return wrap(Task(trunk, 3)), wrap(Task(trunk, 2))


def all_gradients(modules: tuple[nn.Module, nn.Module]) -> dict[str, Tensor | None]:
    return {
        f"{number}.{name}": gradient
        for number, module in enumerate(modules)
        for name, gradient in gradients(module).items()
    }


def a_trunk_may_be_in_two_wrappers(rank: int) -> None:
    def run(modules: tuple[nn.Module, nn.Module], number: int, rank: int) -> None:
        x = batches(number)[rank]
        (modules[0](x).sum() + modules[1](x).pow(2).sum()).backward()

    wrapped = tasks(Ddp)
    for number in range(STEPS):
        for module in wrapped:
            module.zero_grad()
        run(wrapped, number, rank)
        each = []
        for other in range(2):
            alone = tasks(lambda module: module)
            run(alone, number, other)
            each.append(all_gradients(alone))
        want = {name: (each[0][name] + each[1][name]) / 2 for name in each[0]}  # type: ignore
        assert_same(all_gradients(wrapped), want)


def a_wrapper_may_be_inside_another(rank: int) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return Task(nn.Linear(6, 4).double(), 3)

    for inner in (True, False):
        module = make()
        if inner:
            module.trunk = Ddp(module.trunk)
        ddp = Ddp(module if inner else Ddp(module))
        for number in range(STEPS):
            ddp.zero_grad()
            step(ddp, number, rank)
            found = {
                name.replace("module.", ""): p.grad.clone() for name, p in ddp.named_parameters()
            }
            assert_same(found, expected_at(number, make))


def a_module_may_be_wrapped_again(rank: int) -> None:
    module = perceptron()
    first = Ddp(module)
    for number in range(2):
        module.zero_grad()
        step(first, number, rank)
    second = Ddp(module)  # while the first is still there
    for number in range(STEPS):
        module.zero_grad()
        step(second, number, rank)
        assert_same(gradients(second), expected_at(number))


SCENARIOS = [
    what_is_done_to_a_gradient_moves_no_bucket,
    a_gradient_that_is_zeroed_in_place_may_have_been_given_other_memory,
    a_module_may_become_channels_last_between_steps,
    gradients_kept_of_several_losses_stay_what_they_were,
    gradients_that_lie_in_a_tensor_of_the_users_are_averaged_there,
    prepared_gradients_that_are_held_one_by_one_are_averaged_there,
    gradients_kept_from_the_first_step_get_those_of_the_later_ones,
    a_gradient_that_nobody_else_has_lies_in_the_same_memory_in_each_step,
    a_trunk_may_be_in_two_wrappers,
    a_wrapper_may_be_inside_another,
    a_module_may_be_wrapped_again,
]


@pytest.mark.parametrize("backend", ["gloo", "shm"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_gradients_that_others_have_too(tmp_path: Path, backend: str, scenario: object) -> None:
    run_ranks(scenario, tmp_path / "store", backend=backend)  # type: ignore[arg-type]


def test_a_reducer_may_be_collected_while_another_one_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The collector runs finalizers in whatever thread allocates, in the middle of its work."""
    counts = holders.reducers.__class__()
    one, other = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    counts.enter([one, other])
    get = counts._counts.get
    leaving = [[weakref.ref(one), weakref.ref(other)]]

    def collecting(*arguments: object) -> object:
        while leaving:
            counts.leave(leaving.pop())
        return get(*arguments)

    monkeypatch.setattr(counts._counts, "get", collecting)
    thread = threading.Thread(target=counts.enter, args=([one],), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "it waits for a lock that its own thread has"
    assert not counts.share(one)
    counts.enter([one])
    assert counts.share(one)
    assert not counts.share(other)
