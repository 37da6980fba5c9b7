from __future__ import annotations

import torch

from dpbench.architectures import _synthetic_text


def _chain(n: int, generator: torch.Generator | None = None) -> torch.Tensor:
    return _synthetic_text.chain(n, 65, generator or torch.Generator().manual_seed(0))


def test_at_most_two_tokens_follow_a_token() -> None:
    text = _chain(50)
    pairs = set(zip(text[:, :-1].flatten().tolist(), text[:, 1:].flatten().tolist(), strict=True))
    followers = [sum(first == token for first, _ in pairs) for token in {a for a, _ in pairs}]
    assert max(followers) == 2


def test_its_tokens_are_of_the_alphabet() -> None:
    text = _chain(50)
    assert (text.shape, text.dtype) == ((50, 65), torch.int64)
    assert text.unique().tolist() == list(range(_synthetic_text.ALPHABET))


def test_equal_generators_give_equal_texts_and_one_generator_new_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (_chain(4, generator) for _ in range(2))
    assert torch.equal(first, _chain(4))
    assert not torch.equal(first, second)
