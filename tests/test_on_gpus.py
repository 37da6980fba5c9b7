"""Replicas on one GPU and on two; the variants on the CPU rehearse the tests."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dpbench.parallel import DataParallel

CPUS = pytest.param(("cpu", "cpu"), id="cpu")
TWO_GPUS = pytest.param(("cuda:0", "cuda:1"), id="2 GPUs", marks=pytest.mark.gpu(2))
ONE_GPU = pytest.param(("cuda:0",), id="1 GPU", marks=pytest.mark.gpu)
on_pairs = pytest.mark.parametrize("pair", [CPUS, TWO_GPUS])
on_all = pytest.mark.parametrize("devices", [CPUS, ONE_GPU, TWO_GPUS])
Pair = tuple[str, str]


def network(device: str) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)


@on_pairs
def test_devices_are_named_by_index_string_or_object(pair: Pair) -> None:
    module, x = network(pair[0]), torch.randn(9, 16)
    names: list[list[int | str | torch.device]] = [[*pair], [*map(torch.device, pair)]]
    if pair[0] != "cpu":
        names += [[0, 1], [0, pair[1]]]
        with pytest.raises(ValueError, match="cuda:99"):
            DataParallel(module, [pair[0], "cuda:99"])
        with pytest.raises(ValueError, match="cpu"):
            DataParallel(module, [pair[0], "cpu"])
    for devices in names:
        wrapper = DataParallel(module, devices)
        assert [str(device) for device in wrapper.devices] == [*pair]
        torch.testing.assert_close(wrapper(x), module(x.to(pair[0])))


@on_pairs
@pytest.mark.parametrize("second_is_used", [True, False])
def test_outputs_are_gathered_on_the_output_device(pair: Pair, second_is_used: bool) -> None:
    module, x = network(pair[0]), torch.randn(9, 16)
    devices = [*pair] if second_is_used else [pair[0]]
    output = DataParallel(module, devices, output_device=pair[1])(x)
    assert output.device == torch.device(pair[1])
    torch.testing.assert_close(output.to(pair[0]), module(x.to(pair[0])))
    with pytest.raises(ValueError, match="cuda:99"):
        DataParallel(module, devices, output_device="cuda:99")


def _steps(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.sub_(parameter.grad, alpha=0.1)


def _loads(module: nn.Module) -> None:
    module.load_state_dict({name: 0.5 * value for name, value in module.state_dict().items()})


def _freezes(module: nn.Module) -> None:
    next(module.parameters()).requires_grad_(False)


def _turns_to_double(module: nn.Module) -> None:
    module.to(torch.float64)


CHANGES: list[Callable[[nn.Module], None]] = [_steps, _loads, _freezes, _turns_to_double]


@on_pairs
@pytest.mark.parametrize("cache", [True, False])
def test_replicas_follow_every_change_of_the_module(pair: Pair, cache: bool) -> None:
    module = network(pair[0])
    twin, wrapper = copy.deepcopy(module), DataParallel(module, pair, cache=cache)
    x = torch.randn(9, 16, device=pair[0])
    for change in (None, *CHANGES):
        for one in (module, twin):
            if change:
                change(one)
            one.zero_grad()
        x = x.to(next(module.parameters()).dtype)
        output, expected = wrapper(x), twin(x)
        torch.testing.assert_close(output, expected)
        output.pow(2).mean().backward()
        expected.pow(2).mean().backward()
        for ours, theirs in zip(module.parameters(), twin.parameters(), strict=True):
            _are_close(ours.grad, theirs.grad)


def _are_close(ours: Tensor | None, theirs: Tensor | None) -> None:
    assert (ours is None) == (theirs is None)
    if ours is not None and theirs is not None:
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@on_all
def test_buffers_follow_the_first_replica(devices: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).to(devices[0])
    twin = copy.deepcopy(module)
    x = torch.randn(16, 8, device=devices[0])
    DataParallel(module, devices)(x)
    twin(x[: 16 // len(devices)])
    torch.testing.assert_close(module[1].running_mean, twin[1].running_mean)


@on_all
def test_inputs_in_containers_move_to_the_devices_and_outputs_where_they_are_asked_to_be(
    devices: tuple[str, ...],
) -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, pair: tuple[Tensor, dict[str, Tensor]], name: str) -> Tensor:
            assert name == "kept"
            return self.weight * (pair[0] + pair[1]["x"])

    wrapper = DataParallel(Sums().to(devices[0]), devices, output_device="cpu")
    host = torch.arange(6.0)
    torch.testing.assert_close(wrapper((host, {"x": host}), "kept"), 2 * host)


@on_all
def test_results_do_not_depend_on_synchronizing(devices: tuple[str, ...]) -> None:
    module = network(devices[0])
    wrapper, x = DataParallel(module, devices), torch.randn(512, 16, device=devices[0])

    def step() -> list[Tensor]:
        module.zero_grad()
        wrapper(x).pow(2).mean().backward()
        return [p.grad.clone() for p in module.parameters() if p.grad is not None]

    expected = step()
    for repetition in range(100):
        if repetition % 2 and torch.cuda.is_available():
            torch.cuda.synchronize()
        for got, wanted in zip(step(), expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
