"""Synthetic images, rows and texts can be learned, and are the same from equal generators."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dpbench.architectures import _synthetic_images, _synthetic_rows, _synthetic_text

Make = Callable[[torch.Generator], torch.Tensor]
MAKERS: dict[str, Make] = {
    "images": lambda generator: _synthetic_images.batch(5, generator, (1, 8, 8), 10)[0],
    "rows": lambda generator: _synthetic_rows.of_numbers(5, generator, features=4)[0],
    "text": lambda generator: _synthetic_text.chain(5, 65, generator),
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", MAKERS)
def test_equal_generators_give_equal_batches_and_one_generator_new_ones(name: str) -> None:
    before = torch.get_rng_state()
    generator = seeded(3)
    first, second = (MAKERS[name](generator) for _ in range(2))
    assert torch.equal(first, MAKERS[name](seeded(3)))
    assert not torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


def test_at_most_two_tokens_follow_a_token() -> None:
    text = _synthetic_text.chain(50, 65, seeded())
    assert text.unique().tolist() == list(range(_synthetic_text.ALPHABET))
    pairs = set(zip(text[:, :-1].flatten().tolist(), text[:, 1:].flatten().tolist(), strict=True))
    followers = [sum(first == token for first, _ in pairs) for token in {a for a, _ in pairs}]
    assert max(followers) == 2
