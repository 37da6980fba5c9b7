from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dpbench.parallel import balanced_split, gather, scatter


@given(n=st.integers(1, 500), parts=st.integers(1, 40))
def test_balanced_split_covers_all_in_near_equal_parts(n: int, parts: int) -> None:
    sizes = balanced_split(n, parts)
    assert sum(sizes) == n
    assert len(sizes) == min(n, parts)
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - 1 <= min(sizes) >= 1


@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    replicas=st.integers(1, 5),
    data=st.data(),
)
def test_gather_undoes_scatter(shape: list[int], replicas: int, data: st.DataObject) -> None:
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = torch.arange(torch.Size(shape).numel()).reshape(shape)
    chunks = scatter(x, ["cpu"] * replicas, dim)
    assert len(chunks) == min(replicas, shape[dim])
    sizes = [chunk.size(dim) for chunk in chunks]
    assert 1 <= min(sizes) <= max(sizes) <= min(sizes) + 1
    assert torch.equal(gather(chunks, "cpu", dim), x)


class Layers:
    """An object that is no container, made of what it iterates over, like transformers' caches."""

    def __init__(self, layers: Iterable[tuple[Tensor, Tensor]]) -> None:
        self.layers = list(layers)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self.layers)


def test_an_iterable_object_is_made_anew_of_its_gathered_items() -> None:
    keys = torch.arange(6).reshape(3, 2)
    parts = [Layers([(keys[:2], -keys[:2])] * 2), Layers([(keys[2:], -keys[2:])] * 2)]
    together = gather([{"cache": part} for part in parts], "cpu")["cache"]
    assert type(together) is Layers
    assert [[tensor.tolist() for tensor in layer] for layer in together] == [
        [keys.tolist(), (-keys).tolist()]
    ] * 2


def test_containers_keep_their_types_at_any_depth_and_scalars_are_stacked() -> None:
    x, scalar = torch.arange(10).reshape(5, 2), torch.tensor(7)
    first, second = scatter((x, [{"a": x, "n": 3}, None], scalar, ()), ["cpu", "cpu"])
    assert first[0].tolist() == x[:3].tolist()
    assert second[1][0]["a"].tolist() == x[3:].tolist()
    assert first[2].item() == second[2].item() == 7
    assert (first[3], second[3]) == ((), ())
    whole, [pair, nothing], scalars = gather([first[:3], second[:3]], "cpu")
    assert scalars.tolist() == [7, 7]
    assert torch.equal(whole, x)
    assert torch.equal(pair["a"], x)
    assert (pair["n"], nothing) == (3, None)


def test_scatter_refuses_an_empty_batch_and_an_empty_list_of_devices() -> None:
    for n, parts, got in ((0, 2, "0 samples"), (-1, 2, "-1 samples"), (3, 0, "0 parts")):
        with pytest.raises(ValueError, match=f"got {got}"):
            balanced_split(n, parts)
    with pytest.raises(ValueError, match="got 0 samples to split"):
        scatter({"x": torch.ones(3, 0)}, ["cpu", "cpu"], 1)
    with pytest.raises(ValueError, match=r"got device_ids=\[\], expected CUDA devices"):
        scatter(torch.ones(3), [])


def test_scatter_and_gather_are_differentiable() -> None:
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda t: gather([c * i for i, c in enumerate(scatter(t, ["cpu"] * 3), 1)], "cpu"), (x,)
    )


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([], "no outputs"),
        ([torch.zeros(2, 3), torch.zeros(2, 4)], "replica 1 returned torch.float32 of shape"),
        ([torch.zeros(2), torch.zeros(2, dtype=torch.int64)], r"replica 1 returned torch\.int64"),
        (
            [(torch.zeros(2),), [torch.zeros(2)]],
            r"replica 1 returned list with the keys \[0\] at output, replica 0 returned tuple",
        ),
        ([{"a": 1}, {"a": 1}, {"b": 1}], r"replica 2 returned dict with the keys \['b'\]"),
        ([torch.zeros(2), None], "replica 1 returned None"),
        ([3, 4], "replica 1 returned 4"),
        ([Layers([(torch.zeros(2),) * 2]), None], "replica 1 returned None"),
    ],
)
def test_gather_names_the_replica_that_deviates(outputs: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gather(outputs, "cpu")
