"""The precision of float32 products is torch's own, unless a trial asks for another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from dpbench.measure.precision import full_float32, set_tf32


@pytest.fixture(autouse=True)
def _torchs_defaults() -> Iterator[None]:
    """As in a new process, whatever earlier tests did; and so for later ones."""
    _set_defaults()
    yield
    _set_defaults()


def _set_defaults() -> None:
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True


def products() -> tuple[str, bool]:
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


def test_f32_is_what_a_script_without_settings_gets() -> None:
    before = products()
    set_tf32("f32")
    assert products() == before == ("highest", True)


def test_tf32_covers_products_and_convolutions_and_the_proof_can_forbid_it() -> None:
    set_tf32("tf32")
    assert products() == ("high", True)
    full_float32()
    assert products() == ("highest", False)
