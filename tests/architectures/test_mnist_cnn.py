"""The model of the published comparison."""

from __future__ import annotations

import torch

from dpbench import architecture


def test_it_has_the_documented_number_of_parameters() -> None:
    """320 + 18,496 in the convolutions, 1,179,776 + 1,290 in the fully connected layers."""
    model = architecture.load("mnist_cnn").build_model()
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_199_882


def test_it_turns_images_into_log_probabilities() -> None:
    cnn = architecture.load("mnist_cnn")
    inputs, _ = cnn.synthetic_batch(3, torch.Generator().manual_seed(0))
    outputs = cnn.build_model()(inputs)
    assert outputs.shape == (3, 10)
    torch.testing.assert_close(outputs.exp().sum(dim=1), torch.ones(3))
