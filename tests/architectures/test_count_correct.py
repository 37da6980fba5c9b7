from __future__ import annotations

import pytest
import torch

from dpbench import architecture
from dpbench.architecture import CountsCorrect

A, B = [0.9, 0.1], [0.2, 0.8]
"""The likelier answer is 0, and 1."""


def counts(name: str) -> CountsCorrect:
    found = architecture.load(name)
    assert isinstance(found, CountsCorrect)
    return found


@pytest.mark.parametrize("name", ["mlp", "mnist_cnn", "resnet18"])
def test_images_with_the_right_class_are_counted(name: str) -> None:
    right = counts(name).count_correct(torch.tensor([A, B, A, B]), torch.tensor([0, 0, 0, 1]))
    assert torch.equal(right, torch.tensor(3))


def test_tokens_with_the_right_successor_are_counted() -> None:
    outputs = torch.tensor([[A, B, A], [B, B, A]])
    right = counts("transformer").count_correct(outputs, torch.tensor([[0, 1, 1], [0, 1, 0]]))
    assert torch.equal(right, torch.tensor(4))


def test_an_architecture_need_not_count() -> None:
    assert "count_correct" not in architecture._members()
