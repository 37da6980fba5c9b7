"""Operations of forward and backward are counted."""

from __future__ import annotations

import torch

from dpbench import architecture as architectures
from dpbench.data.datasets import Dataset
from dpbench.measure.flops import flops_per_item
from tests.launch.faulty import Healthy

CPU = torch.device("cpu")


def test_attention_and_the_layers_around_it_are_counted() -> None:
    """2 per multiply-add of 16 tokens; the backward pass takes twice the forward pass."""
    gpt = architectures.load("gpt:layers=1,width=32,heads=2,context=16,vocabulary=64")
    inputs, targets = gpt.synthetic_batch(2, torch.Generator().manual_seed(0))
    per_token = 2 * (32 * 96 + 2 * 16 * 32 + 32 * 32 + 2 * 32 * 128 + 32 * 64)
    assert flops_per_item(gpt, Dataset(inputs=inputs, targets=targets), CPU) == 3 * per_token


class NeedsABatch(Healthy):
    """A batch norm refuses to train on what a single sample is to it."""

    def build_model(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2))


def test_a_dataset_of_one_sample_is_enough() -> None:
    one = Dataset(inputs=torch.ones(1, 4), targets=torch.ones(1, 2))
    assert flops_per_item(NeedsABatch(), one, CPU) == 2 * 2 * 8
