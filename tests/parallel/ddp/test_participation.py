"""Parameters that are frozen, converted, moved, replaced or lent out between steps."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, jvp

from dpbench.parallel import DistributedDataParallel as Ddp
from tests.parallel.ddp.one_process import (
    TINY,
    Branches,
    assert_equal_everywhere,
    assert_same,
    batches,
    check_steps,
    everywhere,
    gradients,
    mean_gradients,
    perceptron,
    step,
)
from tests.parallel.ranks import run_ranks


def a_module_converted_there_and_back_is_still_averaged(rank: int) -> None:
    expected = mean_gradients(perceptron, lambda module, r: step(module, 0, r))
    for convert in (
        lambda ddp: ddp.float().double(),
        lambda ddp: ddp.module.bfloat16().half().double(),
    ):
        ddp = Ddp(perceptron())
        step(ddp, 0, rank)
        convert(ddp)
        ddp.load_state_dict(perceptron().state_dict())
        for _ in range(2):
            ddp.zero_grad()
            step(ddp, 0, rank)
            assert_same(gradients(ddp), expected)


def other_memory_of_the_same_kind_is_no_change(rank: int) -> None:
    expected = mean_gradients(perceptron, lambda module, r: step(module, 0, r))
    ddp = Ddp(perceptron())
    for _ in range(3):
        for parameter in ddp.parameters():
            parameter.data = parameter.data.clone()
        ddp.zero_grad()
        step(ddp, 0, rank)
        assert_same(gradients(ddp), expected)


def a_discriminator_is_frozen_during_the_generators_step(rank: int) -> None:
    torch.manual_seed(1)
    generator = Ddp(nn.Sequential(nn.Linear(6, 6)).double())
    discriminator = Ddp(nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1)).double())
    optimizers = [torch.optim.SGD(ddp.parameters(), lr=0.1) for ddp in (generator, discriminator)]
    for number in range(4):
        x = batches(number)[rank]
        discriminator.requires_grad_(False)
        before = gradients(discriminator)
        optimizers[0].zero_grad()
        discriminator(generator(x)).mean().backward()
        assert_equal_everywhere(generator)
        optimizers[0].step()
        assert_same({**gradients(discriminator)}, before)
        discriminator.requires_grad_(True)
        optimizers[1].zero_grad()
        (discriminator(x) - discriminator(generator(x).detach())).mean().backward()
        assert_equal_everywhere(discriminator)
        optimizers[1].step()
    states = everywhere(
        [p.tolist() for ddp in (generator, discriminator) for p in ddp.parameters()]
    )
    assert states[0] == states[1]


def a_part_that_is_frozen_for_a_while_keeps_its_gradients(rank: int) -> None:
    for cap in (None, TINY):
        ddp = Ddp(Branches(), bucket_cap_mb=cap)
        step(ddp, 0, rank)
        kept = gradients(ddp)
        ddp.module.b.requires_grad_(False)
        ddp.module.c.weight.grad = None
        ddp.module.c.requires_grad_(False)
        for parameter in ddp.module.a.parameters():
            parameter.grad = None
        step(ddp, 1, rank)

        def frozen(module: nn.Module, rank: int) -> None:
            module.b.requires_grad_(False)
            module.c.requires_grad_(False)
            step(module, 1, rank)

        expected = mean_gradients(Branches, frozen)
        for name in ("b.weight", "b.bias", "c.bias"):
            expected[name] = kept[name]
        assert_same(gradients(ddp), expected)
        ddp.requires_grad_(True)
        ddp.zero_grad()
        step(ddp, 2, rank)
        assert_same(gradients(ddp), mean_gradients(Branches, lambda m, r: step(m, 2, r)))


def what_one_rank_has_frozen_stays_equal_on_all(rank: int) -> None:
    ddp = Ddp(Branches())
    for number in range(3):
        ddp.module.b.requires_grad_(number != 1 or rank == 0)
        ddp.zero_grad()
        step(ddp, number, rank)
        assert_equal_everywhere(ddp)


def frozen_parameters_may_be_unused(rank: int) -> None:
    for options in ({"find_unused_parameters": True}, {"static_graph": True}):
        ddp = Ddp(Branches(), **options)
        ddp.module.b.requires_grad_(False)
        for _ in range(3):
            ddp.zero_grad()
            step(ddp, 0, rank)
            assert ddp.module.b.weight.grad is None
            assert_equal_everywhere(ddp)


def all_may_be_frozen_from_the_second_step_on(rank: int) -> None:
    ddp = Ddp(perceptron())
    step(ddp, 0, rank)
    ddp.requires_grad_(False)
    x = batches(1)[rank].requires_grad_()
    ddp(x).sum().backward()
    assert x.grad is not None
    ddp.requires_grad_(True)
    ddp.zero_grad()
    step(ddp, 0, rank)
    assert_same(gradients(ddp), mean_gradients(perceptron, lambda m, r: step(m, 0, r)))


def values(ddp: Ddp) -> dict[str, Tensor]:
    return {name: p.detach().clone().requires_grad_() for name, p in ddp.named_parameters()}


def other_parameters_can_be_lent_to_a_call(rank: int) -> None:
    ddp = Ddp(perceptron())
    for _ in range(3):
        lent = values(ddp)
        functional_call(ddp, lent, (batches(0)[rank],)).pow(2).mean().backward()
        alone = perceptron()
        step(alone, 0, rank)
        assert_same({n.removeprefix("module."): p.grad for n, p in lent.items()}, gradients(alone))
        assert all(p.grad is None for p in ddp.parameters())
        as_parameters = {name: nn.Parameter(p.detach()) for name, p in lent.items()}
        functional_call(ddp, as_parameters, (batches(0)[rank],)).sum().backward()
    step(ddp, 0, rank)  # the module's own are averaged as ever
    assert_same(gradients(ddp), mean_gradients(perceptron, lambda m, r: step(m, 0, r)))


def a_function_of_the_parameters_can_be_differentiated(rank: int) -> None:
    ddp = Ddp(perceptron())
    x = batches(0)[rank]
    for _ in range(2):
        found = grad(lambda lent: functional_call(ddp, lent, (x,)).pow(2).mean())(values(ddp))
        alone = perceptron()
        step(alone, 0, rank)
        assert_same({n.removeprefix("module."): g for n, g in found.items()}, gradients(alone))
    check_steps(perceptron, lambda m, r: step(m, 0, r), rank)


def what_is_computed_from_the_parameters_can_be_lent(rank: int) -> None:
    def scaled(module: nn.Module) -> dict[str, Tensor]:
        return {name: 1.5 * p for name, p in module.named_parameters()}

    def alone(module: nn.Module, rank: int) -> None:
        x = batches(0)[rank]
        (functional_call(module, scaled(module), (x,)) + module(x)).pow(2).mean().backward()

    ddp = Ddp(perceptron())
    for _ in range(3):
        ddp.zero_grad()
        x = batches(0)[rank]
        output = ddp(x)  # its reduction is that of both
        (functional_call(ddp, scaled(ddp), (x,)) + output).pow(2).mean().backward()
        assert_same(gradients(ddp), mean_gradients(perceptron, alone))


def a_forward_without_sync_takes_nothing_from_one_with_it(rank: int) -> None:
    def both(module: nn.Module, rank: int) -> None:
        (module(batches(0)[rank]) + module(batches(1)[rank])).pow(2).mean().backward()

    ddp = Ddp(perceptron())
    for _ in range(3):
        ddp.zero_grad()
        output = ddp(batches(0)[rank])
        with ddp.no_sync():
            more = ddp(batches(1)[rank])
        (output + more).pow(2).mean().backward()
        assert_same(gradients(ddp), mean_gradients(perceptron, both))


def an_unfinished_reduction_is_not_forgotten_without_sync(rank: int) -> None:
    ddp = Ddp(Branches())
    ddp(batches(0)[rank], "ab").sum().backward()
    with ddp.no_sync():
        output = ddp(batches(1)[rank], "a")
    with pytest.raises(RuntimeError, match=r"These have got no gradient: c\.weight, c\.bias\."):
        output.sum().backward()
    with pytest.raises(RuntimeError, match=r"did not receive grad .*\n.* c\.weight, c\.bias"):
        ddp(batches(0)[rank])


def a_tied_weight_is_averaged_unless_all_its_names_are_ignored(rank: int) -> None:
    def make() -> nn.Module:
        module = Branches()
        module.b.weight = module.a.weight
        return module

    for ignored in (["a.weight"], ["b.weight"]):
        module = make()
        Ddp._set_params_and_buffers_to_ignore_for_model(module, ignored)
        ddp = Ddp(module)
        step(ddp, 0, rank)
        assert_same(gradients(ddp), mean_gradients(make, lambda m, r: step(m, 0, r)))


def a_compiled_script_can_be_wrapped(rank: int) -> None:
    for compiled in (torch.jit.script, lambda m: torch.jit.trace(m, batches(0)[0])):
        ddp = Ddp(compiled(perceptron()))
        for number in range(3):
            ddp.zero_grad()
            step(ddp, number, rank)
            want = mean_gradients(perceptron, lambda m, r, n=number: step(m, n, r))  # type: ignore
            assert_same(gradients(ddp), want)


def the_first_forward_may_be_inside_a_transformation(rank: int) -> None:
    """The buckets that it makes are plain tensors."""

    def run(module: nn.Module, rank: int) -> None:
        x = batches(0)[rank]
        sum(jvp(module, (x,), (torch.ones_like(x),))).pow(2).mean().backward()

    check_steps(perceptron, run, rank)

    def jacobian(module: nn.Module, rank: int) -> None:
        x = batches(0)[rank]
        (jacrev(module)(x).pow(2).mean() + module(x).sum()).backward()

    check_steps(perceptron, jacobian, rank)


def it_may_be_wrapped_in_inference_mode(rank: int) -> None:
    module = perceptron()
    with torch.inference_mode():
        ddp = Ddp(module)
    step(ddp, 0, rank)
    assert_same(gradients(ddp), mean_gradients(perceptron, lambda m, r: step(m, 0, r)))


class Conjugated(nn.Module):
    """Parameters whose memory holds something else than their values."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        complex_values = torch.randn(6, 4, dtype=torch.complex128)
        self.c = nn.Parameter(complex_values.conj())
        self.negative = nn.Parameter(torch.randn(4, 4, dtype=torch.complex128).conj().imag)

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(torch.complex128) @ self.c).abs() @ self.negative


def parameters_may_be_conjugated_or_negated_views(rank: int) -> None:
    ddp = check_steps(Conjugated, lambda m, r: step(m, 0, r), rank)
    torch.manual_seed(rank + 5)  # other values on each rank, until they are wrapped
    other = Conjugated()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(rank)
    ddp = Ddp(other)
    values = everywhere([torch.view_as_real(ddp.module.c.resolve_conj()).tolist()])
    assert values[0] == values[1]


def a_part_of_the_parameters_can_be_lent(rank: int) -> None:
    ddp = Ddp(perceptron())
    lent = {name: p for name, p in values(ddp).items() if name.startswith("module.0")}
    for _ in range(2):
        ddp.zero_grad()
        functional_call(ddp, lent, (batches(0)[rank],)).pow(2).mean().backward()
        expected = mean_gradients(perceptron, lambda m, r: step(m, 0, r))
        expected["0.weight"] = expected["0.bias"] = None
        assert_same(gradients(ddp), expected)
    step(ddp, 1, rank)


def a_parameter_that_was_only_moved_in_the_module_is_averaged(rank: int) -> None:
    module = Branches()
    ddp = Ddp(module)
    step(ddp, 0, rank)
    module.c = nn.Linear(6, 4).double()
    with pytest.raises(RuntimeError, match=r"parameter 'c\.weight' was replaced"):
        ddp(batches(0)[rank], "a")
    module = Branches()
    ddp = Ddp(module)
    module.a, module.b = module.b, module.a
    step(ddp, 0, rank)
    assert_equal_everywhere(ddp)


def one_rank_alone_may_copy_the_wrapper(rank: int) -> None:
    ddp = Ddp(perceptron())
    step(ddp, 0, rank)
    if rank == 0:
        average = copy.deepcopy(ddp)
        average.module.eval()
        with torch.no_grad():
            average(batches(0)[rank])
    dist.barrier()
    ddp.zero_grad()
    step(ddp, 0, rank)
    assert_same(gradients(ddp), mean_gradients(perceptron, lambda m, r: step(m, 0, r)))
    twin = copy.deepcopy(ddp)  # on both
    twin.zero_grad()
    step(twin, 0, rank)
    assert_same(gradients(twin), mean_gradients(perceptron, lambda m, r: step(m, 0, r)))


SCENARIOS = [
    a_module_converted_there_and_back_is_still_averaged,
    other_memory_of_the_same_kind_is_no_change,
    a_discriminator_is_frozen_during_the_generators_step,
    a_part_that_is_frozen_for_a_while_keeps_its_gradients,
    what_one_rank_has_frozen_stays_equal_on_all,
    frozen_parameters_may_be_unused,
    all_may_be_frozen_from_the_second_step_on,
    other_parameters_can_be_lent_to_a_call,
    a_function_of_the_parameters_can_be_differentiated,
    the_first_forward_may_be_inside_a_transformation,
    it_may_be_wrapped_in_inference_mode,
    parameters_may_be_conjugated_or_negated_views,
    a_part_of_the_parameters_can_be_lent,
    what_is_computed_from_the_parameters_can_be_lent,
    a_forward_without_sync_takes_nothing_from_one_with_it,
    an_unfinished_reduction_is_not_forgotten_without_sync,
    a_tied_weight_is_averaged_unless_all_its_names_are_ignored,
    a_compiled_script_can_be_wrapped,
    a_parameter_that_was_only_moved_in_the_module_is_averaged,
    one_rank_alone_may_copy_the_wrapper,
]


@pytest.mark.parametrize("backend", ["gloo", "shm"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_parameters_change_between_steps(tmp_path: Path, backend: str, scenario: object) -> None:
    run_ranks(scenario, tmp_path / "store", backend=backend)  # type: ignore[arg-type]
