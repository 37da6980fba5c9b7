from __future__ import annotations

import pytest
import torch

from dpbench.architectures import _synthetic_images


def _batch(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    return _synthetic_images.batch(n, torch.Generator().manual_seed(seed))


def test_a_batch_has_the_shapes_and_types_of_mnist() -> None:
    inputs, targets = _batch(5, seed=0)
    assert (inputs.shape, inputs.dtype) == ((5, 1, 28, 28), torch.float32)
    assert (targets.shape, targets.dtype) == ((5,), torch.int64)
    assert set(_batch(500, seed=0)[1].tolist()) == set(range(10))


def test_equal_generators_give_equal_batches() -> None:
    first, second = _batch(5, seed=3), _batch(5, seed=3)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


def test_one_generator_gives_a_new_batch_each_time() -> None:
    generator = torch.Generator().manual_seed(3)
    first, _ = _synthetic_images.batch(5, generator)
    second, _ = _synthetic_images.batch(5, generator)
    assert not torch.equal(first, second)


def test_batches_leave_torchs_own_random_state_alone() -> None:
    before = torch.get_rng_state()
    _batch(5, seed=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_different_generators_show_the_same_classes() -> None:
    means = []
    for seed in (0, 1):
        inputs, targets = _batch(600, seed)
        means.append(torch.stack([inputs[targets == digit].mean(dim=0) for digit in range(10)]))
    apart = (means[0] - means[1]).pow(2).mean().sqrt().item()
    assert apart < 0.2 < means[0].std().item()


def test_the_images_are_float32_whatever_torchs_default_type_is() -> None:
    default = torch.get_default_dtype()
    expected = _batch(2, seed=0)[0]
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(_batch(2, seed=0)[0], expected)
    finally:
        torch.set_default_dtype(default)


@pytest.mark.parametrize(("side", "block"), [(28, 4), (32, 4), (64, 8), (224, 28)])
def test_an_image_without_its_noise_is_made_of_blocks(side: int, block: int) -> None:
    """Seen as the mean of many images of one class."""
    images, targets = _synthetic_images.batch(
        64, torch.Generator().manual_seed(0), (1, side, side), classes=1
    )
    mean = images.mean(dim=0)[0]
    coarse = mean[::block, ::block]
    blocks = coarse.repeat_interleave(block, 0).repeat_interleave(block, 1)
    assert (mean - blocks).std().item() < 0.2 < coarse.std().item()
    assert not targets.any()


def test_sides_may_be_any_number_of_pixels() -> None:
    images, _ = _synthetic_images.batch(2, torch.Generator().manual_seed(0), (3, 31, 45))
    assert images.shape == (2, 3, 31, 45)


def test_there_are_as_many_classes_as_asked_for_and_none_looks_like_another() -> None:
    images, targets = _synthetic_images.batch(
        400, torch.Generator().manual_seed(0), (3, 32, 32), classes=1000
    )
    assert 0 <= targets.min() < 100
    assert 900 < targets.max() < 1000
    first, second = images[targets != targets[0]][0], images[0]
    assert (first - second).pow(2).mean() > 1  # 2 for templates of variance 1, and the noise
