"""What is done to a module before it is wrapped leaves its gradients what they were."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from dpbench.data.datasets import Dataset
from dpbench.errors import UsageError
from dpbench.measure.preparation import blocks_to_recompute, in_layout, prepare, recompute_blocks
from dpbench.specs import WorkloadSpec


def workload(**settings: object) -> WorkloadSpec:
    return WorkloadSpec(architecture="a", dataset="d", **settings)  # type: ignore[arg-type]


class Block(nn.Module):
    """A layer with a shortcut, that counts its forward passes."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Block.calls += 1
        return x + torch.tanh(self.layer(x))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.Sequential(Block(), Block()), nn.Linear(3, 1))


def gradients(module: nn.Module) -> list[torch.Tensor]:
    module(torch.ones(2, 3)).sum().backward()
    return [p.grad for p in module.parameters() if p.grad is not None]


def test_blocks_are_what_has_layers_of_its_own_in_a_sequence() -> None:
    module = network()
    assert list(blocks_to_recompute(module)) == list(module[1].children())  # type: ignore[index, union-attr]


def test_recomputed_blocks_run_again_and_give_the_same_gradients() -> None:
    plain, recomputed = network(), network()
    prepare(recomputed, workload(checkpoint_activations=True))
    names = [name for name, _ in recomputed.named_parameters()]
    assert names == [name for name, _ in plain.named_parameters()]
    Block.calls = 0
    expected = gradients(plain)
    assert Block.calls == 2
    torch.testing.assert_close(gradients(recomputed), expected, rtol=0, atol=0)
    assert Block.calls == 6


def test_a_batch_counts_once_in_the_running_means_of_recomputed_blocks() -> None:
    def normalized() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), Block())

    plain, recomputed = normalized(), normalized()
    recompute_blocks(recomputed)
    torch.testing.assert_close(gradients(recomputed), gradients(plain), rtol=0, atol=0)
    torch.testing.assert_close(recomputed.state_dict(), plain.state_dict(), rtol=0, atol=0)


def test_a_copy_of_a_recomputed_module_runs_its_own_parameters() -> None:
    module = network()
    recompute_blocks(module)
    other = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert other(torch.ones(1, 3)).item() == 0
    assert module(torch.ones(1, 3)).item() != 0


def test_a_module_without_blocks_cannot_be_recomputed() -> None:
    with pytest.raises(UsageError, match=r"Sequential has no blocks .* expected modules with"):
        recompute_blocks(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))


def test_images_and_weights_of_channels_last_lie_that_way_in_every_batch() -> None:
    module = prepare(nn.Conv2d(3, 4, 3), workload(channels_last=True))
    weight = module.get_parameter("weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)
    data = Dataset(inputs=torch.randn(6, 3, 8, 8), targets=torch.zeros(6, 2))
    inputs, targets = in_layout(data, workload(channels_last=True)).take(torch.tensor([4, 1]))
    assert inputs.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(inputs, data.inputs[[4, 1]])
    assert targets.is_contiguous()
    assert in_layout(data, workload()) is data


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_a_compiled_module_is_itself_with_its_own_names() -> None:
    module = prepare(nn.Linear(2, 2), workload(compile="default"))
    assert [*module.state_dict()] == ["weight", "bias"]
    assert module._compiled_call_impl is not None
    assert copy.deepcopy(module)._compiled_call_impl is None
