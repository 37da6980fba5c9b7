"""Counted operations are those that shipped architectures state."""

from __future__ import annotations

import pytest
import torch

from dpbench import architecture as architectures
from dpbench.architectures import _flops
from dpbench.data.datasets import Dataset
from dpbench.measure.flops import flops_per_item
from tests.launch.faulty import Healthy

CPU = torch.device("cpu")
FIRST_LAYER = {
    "dlrm": _flops.linear(13, 512),
    "linear": _flops.linear(4, 2),
    "mlp": _flops.linear(784, 1024),
    "mnist_cnn": _flops.convolution(1, 32, kernel=3, output_side=26),
    "resnet": _flops.convolution(3, 64, kernel=3, output_side=32),
    "vgg16": _flops.convolution(3, 64, kernel=3, output_side=224),
    "vit": _flops.convolution(3, 384, kernel=16, output_side=14),
}
"""Operations for the gradient of the input, which a step does not compute."""


@pytest.mark.parametrize("name", architectures.names())
def test_a_shipped_architecture_states_its_operations(name: str) -> None:
    architecture = architectures.load(name)
    inputs, targets = architecture.synthetic_batch(2, torch.Generator().manual_seed(0))
    counted = flops_per_item(architecture, Dataset(inputs=inputs, targets=targets), CPU)
    assert counted == architecture.flops_per_item - FIRST_LAYER.get(name, 0)


class NeedsABatch(Healthy):
    """A batch norm refuses to train on what a single sample is to it."""

    def build_model(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2))


def test_a_dataset_of_one_sample_is_enough() -> None:
    one = Dataset(inputs=torch.ones(1, 4), targets=torch.ones(1, 2))
    assert flops_per_item(NeedsABatch(), one, CPU) == 2 * 2 * 8
