from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from dpbench.architectures.vit import Architecture

from tests.architectures import on_meta

SMALL = Architecture(image=32, patch=8, classes=10, width=32, layers=2, heads=4)


@pytest.mark.parametrize(
    ("size", "parameters", "multiply_adds"),
    [("tiny", 5_717_416, 1.26), ("s", 22_050_664, 4.61), ("b", 86_567_656, 17.56)],
)
def test_it_has_the_published_sizes(
    size: Literal["tiny", "s", "b"], parameters: int, multiply_adds: float
) -> None:
    """Billions of multiply-adds for an image; of torchvision's documentation or timm's tables."""
    vit = Architecture(size=size)
    assert on_meta.parameter_count(vit) == parameters
    assert vit.flops_per_item / 3 / 2e9 == pytest.approx(multiply_adds, abs=0.02)


@pytest.mark.parametrize("vit", [Architecture(), SMALL], ids=["s", "small"])
def test_its_flops_are_those_that_torch_counts_and_the_input_gradient_of_the_patches(
    vit: Architecture,
) -> None:
    forward, training = on_meta.counted_flops(vit, vit.image)
    assert vit.flops_per_item == 3 * forward
    assert vit.flops_per_item - training == 2 * 3 * vit.image**2 * vit.width


def test_width_layers_and_heads_replace_those_of_the_size() -> None:
    vit = Architecture(size="b", layers=3)
    assert (vit.width, vit.layers, vit.heads) == (768, 3, 12)
    assert (SMALL.width, SMALL.layers, SMALL.heads) == (32, 2, 4)


def test_it_turns_images_into_logits() -> None:
    inputs, targets = SMALL.synthetic_batch(3, torch.Generator().manual_seed(0))
    assert (inputs.shape, inputs.dtype) == ((3, 3, 32, 32), torch.float32)
    assert (targets.shape, targets.dtype) == ((3,), torch.int64)
    assert SMALL.build_model()(inputs).shape == (3, 10)


def test_the_class_depends_on_where_a_patch_is() -> None:
    torch.manual_seed(0)
    model = SMALL.build_model()
    images, _ = SMALL.synthetic_batch(1, torch.Generator().manual_seed(0))
    swapped = images.roll(8, dims=3)  # the same patches, each beside its place
    with torch.no_grad():
        assert not torch.allclose(model(images), model(swapped))
        model.positions.zero_()
        torch.testing.assert_close(model(images), model(swapped))


def test_it_learns_the_synthetic_classes() -> None:
    torch.manual_seed(0)
    model = SMALL.build_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(15):
        inputs, targets = SMALL.synthetic_batch(32, generator)
        optimizer.zero_grad()
        loss = SMALL.loss(model(inputs), targets)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(2.303, abs=0.05)  # log 10: it knows nothing
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": "m"}, "size: got 'm', expected tiny, s, b"),
        ({"patch": 0}, "patch: got 0, expected at least 1"),
        ({"patch": 15}, "image: got 224, expected a multiple of patch, 15"),
        ({"heads": 5}, "width: got 384, expected a multiple of heads, 5"),
        ({"layers": 0}, "layers: got 0, expected at least 1"),
    ],
)
def test_an_option_that_it_cannot_use_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Architecture(**options)


def test_its_items_are_images_and_its_default_dataset_is_synthetic() -> None:
    names = (SMALL.name, SMALL.item, SMALL.default_dataset)
    assert names == ("vit", "images", "synthetic")
