"""What only a GPU can show: replicas on real devices, streams and events that really overlap."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from dpbench.parallel import DataParallel

pytestmark = pytest.mark.gpu


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).cuda()


def test_replicas_that_share_a_device_add_their_gradients() -> None:
    module = model()
    twin = copy.deepcopy(module)
    wrapper = DataParallel(module, ["cuda:0", "cuda:0"])
    x = torch.randn(33, 64, device="cuda")
    for _ in range(3):
        for one in (module, twin):
            one.zero_grad()
        wrapper(x).pow(2).mean().backward()
        twin(x).pow(2).mean().backward()
        for ours, theirs in zip(module.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
            with torch.no_grad():
                ours.sub_(theirs.grad, alpha=0.1)  # an edit in place, which replicas have to see
                theirs.sub_(theirs.grad, alpha=0.1)


def test_buffers_follow_the_first_replica() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).cuda()
    twin = copy.deepcopy(module)
    x = torch.randn(16, 8, device="cuda")
    DataParallel(module, ["cuda:0", "cuda:0"])(x)
    twin(x[:8])
    torch.testing.assert_close(module[1].running_mean, twin[1].running_mean)


def test_outputs_stay_where_they_are_asked_to_be() -> None:
    wrapper = DataParallel(model(), ["cuda:0", "cuda:0"], output_device="cpu")
    assert wrapper(torch.randn(4, 64, device="cuda")).device.type == "cpu"


def test_inputs_in_containers_move_to_the_device() -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, pair: tuple[Tensor, dict[str, Tensor]], name: str) -> Tensor:
            assert name == "kept"
            return self.weight * (pair[0] + pair[1]["x"])

    wrapper = DataParallel(Sums().cuda(), ["cuda:0", "cuda:0"])
    host = torch.arange(6.0)
    result = wrapper((host, {"x": host}), "kept")
    torch.testing.assert_close(result, (2 * host).cuda())


@pytest.mark.parametrize("second", ["cuda:0", pytest.param("cuda:1", marks=pytest.mark.gpu(2))])
def test_results_do_not_depend_on_synchronizing(second: str) -> None:
    module = model()
    wrapper, x = DataParallel(module, ["cuda:0", second]), torch.randn(512, 64, device="cuda")

    def step() -> list[Tensor]:
        module.zero_grad()
        wrapper(x).pow(2).mean().backward()
        return [p.grad.clone() for p in module.parameters() if p.grad is not None]

    expected = step()
    for repetition in range(100):
        if repetition % 2:
            torch.cuda.synchronize()
        for got, wanted in zip(step(), expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
