from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dpbench.training.host_copy import HostCopy
from tests.training.checkpoint_samples import same


def values(fill: float) -> dict[str, Any]:
    return {
        "weight": torch.full((4, 3), fill).t(),
        "half": torch.full((5,), fill, dtype=torch.bfloat16)[::2],
        "parameter": torch.nn.Parameter(torch.full((2,), fill)),
        "nested": [{0: torch.tensor(3)}, (torch.tensor([], dtype=torch.bool), None)],
        "numbers": [1, 1.5, "words", True],
    }


def test_a_copy_stays_when_the_original_changes() -> None:
    original = values(1.0)
    copied = HostCopy().take(original)
    assert same(copied, values(1.0))
    with torch.no_grad():
        original["weight"].zero_()
        original["parameter"].zero_()
    assert same(copied, values(1.0))
    assert not copied["parameter"].requires_grad


def test_the_next_copy_takes_the_same_memory() -> None:
    host = HostCopy()
    first = host.take(values(1.0))
    places = [first["weight"].data_ptr(), first["nested"][0][0].data_ptr()]
    second = host.take(values(2.0))
    assert same(second, values(2.0))
    assert [second["weight"].data_ptr(), second["nested"][0][0].data_ptr()] == places


def test_what_has_another_shape_or_kind_gets_memory_of_its_own() -> None:
    host = HostCopy()
    host.take({"a": torch.zeros(2), "b": torch.zeros(2)})
    second = {"a": torch.ones(3), "b": torch.ones(2, dtype=torch.float64)}
    assert same(host.take(second), second)


def test_a_view_takes_no_more_than_its_own_elements() -> None:
    row = HostCopy().take({"row": torch.zeros(1000, 4)[7]})["row"]
    assert row.untyped_storage().nbytes() == 16


@pytest.mark.parametrize("odd", [np.float64(1.0), torch.float32, {1, 2}, print])
def test_what_is_not_plain_is_named(odd: object) -> None:
    with pytest.raises(TypeError, match=r"^groups\.0\.rate: got a .*; expected dicts, lists"):
        HostCopy().take({"groups": [{"rate": odd}]})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tensors_of_a_device_come_through_page_locked_memory() -> None:
    host = HostCopy()
    on_device = {"weight": torch.randn(1000, 1000, device="cuda"), "step": torch.tensor(1.0)}
    copied = host.take(on_device)
    assert copied["weight"].is_pinned()
    assert not copied["step"].is_pinned()
    expected = on_device["weight"].cpu()
    on_device["weight"].zero_()
    assert torch.equal(copied["weight"], expected)
