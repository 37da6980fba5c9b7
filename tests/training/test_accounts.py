"""Equal models have equal hashes, and any difference shows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
import torch

from dpbench.errors import TrainingFailed
from dpbench.training import accounts
from dpbench.training.accounts import state_sha256


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))


def test_the_hash_is_of_names_dtypes_shapes_and_bytes() -> None:
    module = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.ones_(module.weight)
    content = b"weight\0torch.float32\0(1, 2)\0" + b"\0\0\x80?" * 2
    assert state_sha256(module) == hashlib.sha256(content).hexdigest()


def test_layout_and_order_of_making_make_no_difference() -> None:
    turned = model()
    turned[0].weight.data = turned[0].weight.data.t().contiguous().t()  # type: ignore[index]
    other_order = torch.nn.Sequential()
    other_order.add_module("1", model()[1])  # type: ignore[index]
    other_order.add_module("0", model()[0])  # type: ignore[index]
    assert state_sha256(turned) == state_sha256(other_order) == state_sha256(model())


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m[0].weight.data[0, 0].add_(1e-7),
        lambda m: m[1].running_mean.add_(1e-7),
        lambda m: m[1].num_batches_tracked.add_(1),
        lambda m: m[0].to(torch.bfloat16),
        lambda m: m.add_module("2", torch.nn.Linear(1, 1)),
    ],
    ids=["parameter", "buffer", "counter", "dtype", "name"],
)
def test_any_difference_shows(change: Callable[[torch.nn.Module], object]) -> None:
    changed = model()
    change(changed)
    assert state_sha256(changed) != state_sha256(model())


def test_halves_and_scalars_have_a_hash() -> None:
    module = model().to(torch.bfloat16)
    module.register_buffer("scalar", torch.tensor(1.0))
    assert len(state_sha256(module)) == 64


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[1, 2, 3]", b'["a", 1]', b'["a", true, 1]', b'["a", 1.5, 1]', b"[" * 4000],
)
def test_what_a_rank_says_of_itself_is_a_host_and_two_numbers(data: bytes) -> None:
    assert accounts._identity(0, b'["a", 1, 2]') == ("a", 1, 2)
    with pytest.raises(TrainingFailed, match="rank 3 sent something else than its host"):
        accounts._identity(3, data)
