"""Containers of any class are rebuilt around new leaves, without calling the class."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from dpbench.parallel.tree import leaves, map_leaves


class Pair(list[int]):
    def __init__(self, first: int, second: int) -> None:
        super().__init__([first, second])
        self.name = "pair"


class Point(NamedTuple):
    first: int
    second: int


@dataclass(frozen=True)
class Record:
    first: int
    second: int


class Table(dict[str, int]):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(first=first, second=second)
        self.name = "table"


@pytest.mark.parametrize(
    "tree",
    [
        Pair(3, 4),
        Point(3, 4),
        Record(3, 4),
        Table(3, 4),
        [3, 4],
        (3, 4),
        OrderedDict(a=3, b=4),
        defaultdict(list, {"a": 3, "b": 4}),
        torch.Size([3, 4]),
        torch.return_types.max((3, 4)),
    ],
    ids=lambda tree: type(tree).__name__,
)
def test_a_container_keeps_its_class_and_its_other_state(tree: Any) -> None:
    twin = map_leaves(lambda leaf: leaf + 1, tree)
    assert type(twin) is type(tree)
    assert list(leaves(twin)) == [4, 5]
    assert list(leaves(tree)) == [3, 4]
    assert getattr(twin, "name", None) == getattr(tree, "name", None)
