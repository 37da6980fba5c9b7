from __future__ import annotations

import pytest
import torch
from dpbench.architectures.vgg16 import Architecture

from tests.architectures import on_meta

SMALL = Architecture(image=32, classes=10, hidden=64)
CONV1_1_FORWARD_FLOPS_PER_PIXEL = 2 * 3 * 3 * 3 * 64


def test_it_has_the_published_sizes() -> None:
    """Of torchvision's documentation, the latter in billions of multiply-adds for an image."""
    vgg16 = Architecture()
    assert on_meta.parameter_count(vgg16) == 138_357_544
    assert vgg16.flops_per_item / 3 / 2e9 == pytest.approx(15.47, abs=0.01)


def test_most_of_its_gradients_are_those_of_the_fully_connected_layers() -> None:
    with torch.device("meta"):
        named = list(Architecture().build_model().named_parameters())
    connected = sum(parameter.numel() for name, parameter in named if name.startswith("fc"))
    assert connected == 102_764_544 + 16_781_312 + 4_097_000
    assert len([name for name, _ in named if name.endswith("weight")]) == 16


def test_smaller_images_and_narrower_hidden_layers_keep_the_convolutions() -> None:
    convolutions = 14_714_688
    hidden, outputs = (512 * 64 + 64) + (64 * 64 + 64), 64 * 10 + 10
    assert on_meta.parameter_count(SMALL) == convolutions + hidden + outputs


@pytest.mark.parametrize("vgg16", [Architecture(), SMALL], ids=["imagenet", "small"])
def test_its_flops_are_those_that_torch_counts_and_the_input_gradient_of_the_first_layer(
    vgg16: Architecture,
) -> None:
    forward, training = on_meta.counted_flops(vgg16, vgg16.image)
    assert vgg16.flops_per_item == 3 * forward
    assert vgg16.flops_per_item - training == CONV1_1_FORWARD_FLOPS_PER_PIXEL * vgg16.image**2


def test_it_turns_images_into_logits() -> None:
    inputs, targets = SMALL.synthetic_batch(2, torch.Generator().manual_seed(0))
    assert (inputs.shape, inputs.dtype) == ((2, 3, 32, 32), torch.float32)
    assert (targets.shape, targets.dtype) == ((2,), torch.int64)
    with torch.device("meta"):
        assert SMALL.build_model()(inputs.to("meta")).shape == (2, 10)


def test_its_weights_start_so_that_neither_values_nor_gradients_vanish_or_explode() -> None:
    torch.manual_seed(0)
    model = SMALL.build_model().eval()
    inputs, targets = SMALL.synthetic_batch(4, torch.Generator().manual_seed(0))
    loss = SMALL.loss(model(inputs), targets)
    torch.autograd.backward(loss)
    assert loss.item() == pytest.approx(2.303, abs=0.2)  # log 10: it knows nothing
    first, last = (model.get_submodule(name).weight for name in ("conv1_1", "conv5_3"))
    ratio = first.grad.norm() / last.grad.norm()
    assert 0.01 < ratio < 100


def test_it_learns_a_synthetic_batch_by_heart() -> None:
    """Without dropout, whose noise a few steps do not average out."""
    torch.manual_seed(0)
    model = SMALL.build_model().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    inputs, targets = SMALL.synthetic_batch(4, torch.Generator().manual_seed(1))
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = SMALL.loss(model(inputs), targets)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image": 48}, "image: got 48, expected a multiple of 32"),
        ({"image": 0}, "image: got 0, expected a multiple of 32"),
        ({"hidden": 0}, "hidden: got 0, expected at least 1"),
        ({"classes": 0}, "classes: got 0, expected at least 1"),
    ],
)
def test_an_option_that_it_cannot_use_is_named(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Architecture(**options)


def test_its_items_are_images_and_its_default_dataset_is_synthetic() -> None:
    names = (SMALL.name, SMALL.item, SMALL.default_dataset)
    assert names == ("vgg16", "images", "synthetic")
