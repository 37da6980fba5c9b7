from __future__ import annotations

import pytest
import torch

from dpbench import architecture
from dpbench.architecture import CountsCorrect
from dpbench.architecture.protocol import missing_members

A, B = [0.9, 0.1], [0.2, 0.8]
"""The likelier answer is 0, and 1."""


def counts(name: str) -> CountsCorrect:
    found = architecture.load(name)
    assert isinstance(found, CountsCorrect)
    return found


@pytest.mark.parametrize("name", ["mlp", "mnist_cnn", "resnet", "tabular"])
def test_images_with_the_right_class_are_counted(name: str) -> None:
    right = counts(name).count_correct(torch.tensor([A, B, A, B]), torch.tensor([0, 0, 0, 1]))
    assert torch.equal(right, torch.tensor(3))


@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_tokens_that_are_the_right_ones_are_counted(name: str) -> None:
    outputs = torch.tensor([[A, B, A], [B, B, A]])
    right = counts(name).count_correct(outputs, torch.tensor([[0, 1, 1], [0, 1, 0]]))
    assert torch.equal(right, torch.tensor(4))


def test_clicks_are_told_from_none_at_even_odds() -> None:
    outputs = torch.tensor([2.0, -1.0, 0.5, -0.5])
    right = counts("dlrm").count_correct(outputs, torch.tensor([1.0, 0.0, 0.0, 1.0]))
    assert torch.equal(right, torch.tensor(2))


def test_numbers_are_not_counted() -> None:
    assert not isinstance(architecture.load("tabular:features=10,classes=1"), CountsCorrect)


def test_an_architecture_need_not_count() -> None:
    assert "count_correct" not in missing_members(object())
