"""The model of the published comparison."""

from __future__ import annotations

import torch

from dpbench import architecture


def test_it_turns_images_into_log_probabilities() -> None:
    cnn = architecture.load("mnist_cnn")
    inputs, _ = cnn.synthetic_batch(3, torch.Generator().manual_seed(0))
    outputs = cnn.build_model()(inputs)
    assert outputs.shape == (3, 10)
    torch.testing.assert_close(outputs.exp().sum(dim=1), torch.ones(3))
