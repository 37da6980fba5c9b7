"""Synthetic images, rows and texts can be learned, and are the same from equal generators."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dpbench.architectures import _synthetic_images, _synthetic_rows, _synthetic_text

Make = Callable[[torch.Generator], torch.Tensor]
MAKERS: dict[str, Make] = {
    "images": lambda generator: _synthetic_images.batch(5, generator)[0],
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


def test_images_are_float32_like_mnist_whatever_the_default_dtype_is() -> None:
    inputs, targets = _synthetic_images.batch(500, seeded())
    assert (inputs.shape, inputs.dtype) == ((500, 1, 28, 28), torch.float32)
    assert set(targets.tolist()) == set(range(10))
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(_synthetic_images.batch(500, seeded())[0], inputs)
    finally:
        torch.set_default_dtype(torch.float32)


def test_different_generators_show_the_same_classes() -> None:
    means = []
    for seed in (0, 1):
        inputs, targets = _synthetic_images.batch(600, seeded(seed))
        means.append(torch.stack([inputs[targets == digit].mean(dim=0) for digit in range(10)]))
    apart = (means[0] - means[1]).pow(2).mean().sqrt().item()
    assert apart < 0.2 < means[0].std().item()


def test_there_are_as_many_classes_as_asked_for_and_none_looks_like_another() -> None:
    images, targets = _synthetic_images.batch(400, seeded(), (3, 31, 45), classes=1000)
    assert images.shape == (400, 3, 31, 45)
    assert 0 <= targets.min() < 100
    assert 900 < targets.max() < 1000
    first, second = images[targets != targets[0]][0], images[0]
    assert (first - second).pow(2).mean() > 1  # 2 for templates of variance 1, and the noise


def test_rows_of_a_class_lie_around_one_center() -> None:
    rows, targets = _synthetic_rows.of_classes(3000, seeded(), features=4, classes=3)
    again, classes = _synthetic_rows.of_classes(3000, seeded(1), features=4, classes=3)
    for target in range(3):
        own = rows[targets == target]
        assert len(own) > 900
        assert own.std(dim=0).mean() == pytest.approx(_synthetic_rows.NOISE, abs=0.03)
        center = again[classes == target].mean(dim=0)
        torch.testing.assert_close(own.mean(dim=0), center, atol=0.1, rtol=0)


def test_numbers_depend_on_the_rows_and_clicks_are_even() -> None:
    rows, numbers = _synthetic_rows.of_numbers(3000, seeded(), features=4)
    fit = torch.linalg.lstsq(rows, numbers.unsqueeze(1)).solution
    rest = numbers - (rows @ fit).squeeze(1)
    assert rest.std() == pytest.approx(_synthetic_rows.NOISE, abs=0.03)
    (_, indices), clicked = _synthetic_rows.of_clicks(3000, seeded(), dense=13, tables=26, rows=100)
    assert clicked.mean() == pytest.approx(0.5, abs=0.1)
    assert (indices < 12.5).float().mean() == pytest.approx(0.5, abs=0.04)  # (1/8)^(1/3)


def test_at_most_two_tokens_follow_a_token() -> None:
    text = _synthetic_text.chain(50, 65, seeded())
    assert text.unique().tolist() == list(range(_synthetic_text.ALPHABET))
    pairs = set(zip(text[:, :-1].flatten().tolist(), text[:, 1:].flatten().tolist(), strict=True))
    followers = [sum(first == token for first, _ in pairs) for token in {a for a, _ in pairs}]
    assert max(followers) == 2
