from __future__ import annotations

from itertools import islice

import pytest
import torch
from dpbench.architectures.resnet import Architecture

from tests.architectures import on_meta

STEM_FORWARD_FLOPS = {32: 2 * 3 * 3 * 3 * 64 * 32**2, 224: 2 * 7 * 7 * 3 * 64 * 112**2}
PUBLISHED = {
    18: (11_689_512, 1.81),
    34: (21_797_672, 3.66),
    50: (25_557_032, 4.09),
    101: (44_549_160, 7.80),
    152: (60_192_808, 11.51),
}
"""Parameters, and billions of multiply-adds for an image, in torchvision's documentation."""
BILLION_MULTIPLY_ADDS = 2e9


def _batch(
    resnet: Architecture, n: int, generator: torch.Generator | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    return resnet.synthetic_batch(n, generator or torch.Generator().manual_seed(0))


@pytest.mark.parametrize("depth", PUBLISHED)
def test_for_imagenet_it_has_the_published_sizes(depth: int) -> None:
    resnet = Architecture(depth=depth, image=224)
    parameters, multiply_adds = PUBLISHED[depth]
    assert on_meta.parameter_count(resnet) == parameters
    forward = resnet.flops_per_item / 3 / BILLION_MULTIPLY_ADDS
    assert forward == pytest.approx(multiply_adds, abs=0.01)


def test_for_cifar_it_has_the_documented_number_of_parameters() -> None:
    """1,856 in the stem, 147,968 + 525,568 + 2,099,712 + 8,393,728 in the stages, 5,130 behind."""
    assert on_meta.parameter_count(Architecture()) == 11_173_962


@pytest.mark.parametrize(("depth", "convolutions"), [(18, 17), (50, 49)])
def test_it_has_as_many_layers_with_weights_as_its_depth_says(
    depth: int, convolutions: int
) -> None:
    """And one convolution in each of its shortcuts that changes shape."""
    with torch.device("meta"):
        named = list(Architecture(depth=depth, image=224).build_model().named_parameters())
    kernels = [name for name, parameter in named if parameter.dim() == 4]
    assert len([name for name in kernels if "shortcut" not in name]) == convolutions
    assert len([name for name in kernels if "shortcut" in name]) == (3 if depth == 18 else 4)


def test_the_names_and_the_order_of_its_parameters_are_those_that_old_checkpoints_have() -> None:
    with torch.device("meta"):
        named = Architecture().build_model().named_parameters()
    bottom = [name for name, _ in islice(named, 6)]
    stages = [name for name, _ in named if name.endswith("conv1.weight")]
    assert bottom == [
        "conv.weight",
        "bn.weight",
        "bn.bias",
        "stage1.0.conv1.weight",
        "stage1.0.bn1.weight",
        "stage1.0.bn1.bias",
    ]
    assert stages == [f"stage{i}.{j}.conv1.weight" for i in (1, 2, 3, 4) for j in (0, 1)][1:]


@pytest.mark.parametrize(
    ("depth", "image", "shapes"),
    [
        (18, 32, [(64, 32), (128, 16), (256, 8), (512, 4)]),
        (50, 224, [(256, 56), (512, 28), (1024, 14), (2048, 7)]),
    ],
)
def test_its_stages_halve_the_image_three_times(
    depth: int, image: int, shapes: list[tuple[int, int]]
) -> None:
    seen = []
    with torch.device("meta"):
        features = torch.empty(1, 3, image, image)
        for name, layer in Architecture(depth=depth, image=image).build_model().named_children():
            features = layer(features)
            if name.startswith("stage"):
                seen.append((features.shape[1], features.shape[2]))
    assert seen == shapes


def test_its_batches_are_images_of_its_size_in_its_classes() -> None:
    resnet = Architecture(image=224)
    inputs, targets = _batch(resnet, 3)
    assert (inputs.shape, inputs.dtype) == ((3, 3, 224, 224), torch.float32)
    assert (targets.shape, targets.dtype) == ((3,), torch.int64)
    assert resnet.classes == 1000
    assert Architecture().classes == 10
    assert Architecture(classes=7).build_model()(_batch(Architecture(), 2)[0]).shape == (2, 7)


def test_its_loss_is_the_mean_cross_entropy() -> None:
    outputs = torch.log(torch.tensor([[3.0, 1.0], [1.0, 1.0]]))  # probabilities 3/4 and 1/2
    loss = Architecture().loss(outputs, torch.tensor([0, 0]))
    torch.testing.assert_close(loss, torch.log(torch.tensor(8 / 3)) / 2)


@pytest.mark.parametrize(("depth", "image"), [(18, 32), (18, 224), (50, 224)])
def test_its_flops_are_those_that_torch_counts_and_the_input_gradient_of_the_stem(
    depth: int, image: int
) -> None:
    resnet = Architecture(depth=depth, image=image)
    forward, training = on_meta.counted_flops(resnet, image)
    assert resnet.flops_per_item == 3 * forward
    assert resnet.flops_per_item - training == STEM_FORWARD_FLOPS[image]


def test_it_learns_the_synthetic_classes() -> None:
    """In training mode: six steps are too few for the running statistics of evaluation."""
    torch.manual_seed(0)
    resnet = Architecture()
    model = resnet.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(6):
        inputs, targets = _batch(resnet, 16, generator)
        optimizer.zero_grad()
        loss = resnet.loss(model(inputs), targets)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 19}, "depth: got 19, expected 18, 34, 50, 101, 152"),
        ({"image": 64}, "image: got 64, expected 32, 224"),
        ({"classes": 0}, "classes: got 0, expected at least 1"),
    ],
)
def test_an_option_that_it_cannot_use_is_named(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Architecture(**options)


def test_its_items_are_images_and_its_default_dataset_is_synthetic() -> None:
    resnet = Architecture()
    names = (resnet.name, resnet.item, resnet.default_dataset)
    assert names == ("resnet", "images", "synthetic")
