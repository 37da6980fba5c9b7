from __future__ import annotations

import pytest
import torch

from architectures import resnet18
from dpbench import architecture
from tests.architectures.learning import counted_flops

STEM_FORWARD_FLOPS = 2 * 27 * 64 * 32 * 32


@pytest.fixture
def resnet() -> architecture.Architecture:
    return architecture.load("resnet18")


def test_it_has_the_documented_number_of_parameters(resnet: architecture.Architecture) -> None:
    parameters = sum(p.numel() for p in resnet.build_model().parameters())
    assert parameters == resnet18.PARAMETERS == 11_173_962


def test_it_has_eighteen_layers_with_weights_beside_its_three_shortcuts(
    resnet: architecture.Architecture,
) -> None:
    kernels = [p.shape[2] for p in resnet.build_model().parameters() if p.dim() == 4]
    assert (kernels.count(3), kernels.count(1)) == (17, 3)  # and the fully connected layer


def test_it_turns_images_into_logits(resnet: architecture.Architecture) -> None:
    inputs, targets = resnet.synthetic_batch(3, torch.Generator().manual_seed(0))
    assert (inputs.shape, inputs.dtype) == ((3, 3, 32, 32), torch.float32)
    assert (targets.shape, targets.dtype) == ((3,), torch.int64)
    assert resnet.build_model()(inputs).shape == (3, 10)


def test_its_stages_halve_the_image_three_times(resnet: architecture.Architecture) -> None:
    features = resnet.synthetic_batch(1, torch.Generator().manual_seed(0))[0]
    shapes = []
    for name, layer in resnet.build_model().named_children():
        features = layer(features)
        if name.startswith("stage"):
            shapes.append(tuple(features.shape[1:]))
    assert shapes == [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]


def test_its_loss_is_the_mean_cross_entropy(resnet: architecture.Architecture) -> None:
    outputs = torch.log(torch.tensor([[3.0, 1.0], [1.0, 1.0]]))  # probabilities 3/4 and 1/2
    loss = resnet.loss(outputs, torch.tensor([0, 0]))
    torch.testing.assert_close(loss, torch.log(torch.tensor(8 / 3)) / 2)


def test_its_forward_flops_are_those_that_torch_counts(resnet: architecture.Architecture) -> None:
    assert resnet18.FORWARD_FLOPS == 1_110_845_440
    assert counted_flops(resnet, backward=False) == resnet18.FORWARD_FLOPS


def test_its_flops_per_item_exceed_torchs_count_by_the_input_gradient_of_the_stem(
    resnet: architecture.Architecture,
) -> None:
    counted = counted_flops(resnet, backward=True)
    assert resnet.flops_per_item - counted == STEM_FORWARD_FLOPS


def test_it_learns_the_synthetic_classes(resnet: architecture.Architecture) -> None:
    """In training mode: six steps are too few for the running statistics of evaluation."""
    torch.manual_seed(0)
    model = resnet.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(6):
        inputs, targets = resnet.synthetic_batch(16, generator)
        optimizer.zero_grad()
        loss = resnet.loss(model(inputs), targets)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


def test_its_items_are_images_and_its_default_dataset_is_synthetic(
    resnet: architecture.Architecture,
) -> None:
    names = (resnet.name, resnet.item, resnet.default_dataset)
    assert names == ("resnet18", "images", "synthetic")
