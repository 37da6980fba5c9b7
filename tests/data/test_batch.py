"""Trees of tensors as inputs and targets."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from dpbench.data.batch import call, sample_count
from dpbench.data.datasets import Dataset
from dpbench.errors import UsageError

Pair = namedtuple("Pair", ["dense", "indices"])


@dataclass
class Sentence:
    tokens: torch.Tensor
    mask: torch.Tensor


TREES = [
    torch.arange(6).view(3, 2),
    (torch.arange(3), torch.ones(3, 2)),
    {"tokens": torch.arange(3), "nested": [torch.zeros(3, 1, 4)]},
    Pair(torch.arange(3.0), {"a": torch.arange(3)}),
    Sentence(torch.arange(3), torch.ones(3)),
]


def arguments(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


def test_a_model_is_called_as_torch_data_parallel_would() -> None:
    x, y = torch.zeros(1), torch.ones(1)
    assert call(arguments, x) == ((x,), {})
    assert call(arguments, (x, y)) == ((x, y), {})
    assert call(arguments, Pair(x, y)) == ((x, y), {})
    assert call(arguments, {"tokens": x, "mask": y}) == ((), {"tokens": x, "mask": y})
    assert call(arguments, [x, y]) == (([x, y],), {})


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: type(tree).__name__)
def test_the_samples_of_a_tree_are_taken_from_each_of_its_tensors(tree: Any) -> None:
    data = Dataset(inputs=tree, targets=torch.arange(3))
    assert len(data) == 3
    inputs, targets = data.select(torch.tensor([2, 0]))
    assert type(inputs) is type(tree)
    assert (sample_count(inputs=inputs), targets.tolist()) == (2, [2, 0])
    assert (len(data.part(1, 3)), data.to("meta").targets.device.type) == (2, "meta")


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (
            {"a": torch.ones(2), "b": torch.ones(3)},
            torch.ones(2),
            r"2 inputs\['a'\] and 3 inputs\['b'\]",
        ),
        ((torch.ones(2),), (torch.ones(2), torch.ones(5)), r"2 inputs\[0\] and 5 targets\[1\]"),
        (torch.ones(2), torch.tensor(1.0), "targets: got a tensor without dimensions"),
        (torch.ones(2), {"label": "cat"}, r"targets\['label'\]: got str, expected a tensor"),
        (torch.ones(2), (), "targets: got an empty tuple, expected a tensor in it"),
        (torch.ones(2), None, "targets: got NoneType, expected a tensor"),
    ],
)
def test_samples_that_disagree_are_named(inputs: Any, targets: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Dataset(inputs=inputs, targets=targets)
