"""Models of images compute the same where the channels of a pixel lie side by side."""

from __future__ import annotations

import pytest
import torch

from dpbench.architecture import Architecture
from dpbench.architectures import mnist_cnn, resnet, vgg16, vit

MODELS = {
    "mnist_cnn": mnist_cnn.Architecture(width=8),
    "resnet": resnet.Architecture(),
    "vgg16": vgg16.Architecture(image=32, classes=10, hidden=64),
    "vit": vit.Architecture(image=32, patch=8, classes=10, width=32, layers=2, heads=4),
}


@pytest.mark.parametrize("name", MODELS)
def test_channels_may_come_last(name: str) -> None:
    architecture: Architecture = MODELS[name]
    torch.manual_seed(0)
    model = architecture.build_model().eval()
    images, _ = architecture.synthetic_batch(2, torch.Generator().manual_seed(0))
    with torch.no_grad():
        first = model(images)
        model.to(memory_format=torch.channels_last)
        last = model(images.to(memory_format=torch.channels_last))
    kernels = [parameter for parameter in model.parameters() if parameter.dim() == 4]
    assert kernels
    assert all(kernel.is_contiguous(memory_format=torch.channels_last) for kernel in kernels)
    torch.testing.assert_close(last, first)
