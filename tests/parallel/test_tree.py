"""Containers of any class are rebuilt around new leaves."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils._pytree import register_pytree_node

from dpbench.parallel.tree import leaves, map_leaves, zip_leaves


class Point(NamedTuple):
    first: int
    second: int


@dataclass(frozen=True, slots=True)
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
    mapped = map_leaves(lambda leaf: leaf + 1, tree)
    zipped = zip_leaves(lambda parts, _: parts[1] + 1, [tree, tree])
    for twin in (mapped, zipped):
        assert type(twin) is type(tree)
        assert list(leaves(twin)) == [4, 5]
        assert list(leaves(tree)) == [3, 4]
        assert getattr(twin, "name", None) == getattr(tree, "name", None)


@dataclass
class Output(OrderedDict[str, int]):
    """Dictionary and dataclass at once, like those of transformers."""

    loss: int

    def __post_init__(self) -> None:
        self["loss"] = self.loss

    def __copy__(self) -> Output:
        raise TypeError("no copy")


def test_a_class_that_is_registered_with_pytree_is_rebuilt_as_registered() -> None:
    register_pytree_node(
        Output, lambda node: (list(node.values()), None), lambda parts, _: Output(*parts)
    )
    twin = map_leaves(lambda leaf: leaf + 1, [Output(3)])[0]
    assert (type(twin), twin.loss, dict(twin)) == (Output, 4, {"loss": 4})
    assert zip_leaves(lambda parts, path: (parts, path), [Output(3), Output(4)])["loss"] == (
        [3, 4],
        "output['loss']",
    )


def test_what_is_no_container_is_a_leaf() -> None:
    for leaf in (object(), "text", None, {1, 2}, Record, torch.ones(2)):
        assert map_leaves(lambda found: found, leaf) is leaf
        assert list(leaves(leaf)) == [leaf]
