"""One linear layer, for arithmetic by hand.

Inputs, targets and first weights are small integers: a known matrix makes the targets, and the
weights start at 0. So if batch and outputs are powers of two, the first step is exact in float32,
in whatever order it is added up: the loss is the mean of the squared targets, and its gradient by
the weights is −2 · targetsᵀ · inputs ÷ (batch · outputs).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from . import _options

LARGEST = 2
"""Largest value of the inputs and of the known matrix; the smallest is −2."""
TRUE_BIAS = 1
"""Constant added to every target if the layer has a bias."""


def true_weight(inputs: int, outputs: int) -> torch.Tensor:
    """The known matrix, float32 (outputs, inputs): −2, −1, 0, 1, 2 again and again, row by row."""
    values = torch.arange(inputs * outputs, device="cpu") % (2 * LARGEST + 1) - LARGEST
    return values.to(torch.float32).view(outputs, inputs)


class Architecture:
    """`inputs` integers to `outputs` weighted sums of them."""

    name: str = "linear"
    item: str = "rows"
    default_dataset: str = "synthetic"

    def __init__(self, *, inputs: int = 4, outputs: int = 2, bias: bool = True) -> None:
        _options.expect_at_least(1, inputs=inputs, outputs=outputs)
        self.inputs = inputs
        self.outputs = outputs
        self.bias = bias

    def build_model(self) -> nn.Module:
        """A new model, all zeros: rows (n, inputs) to sums (n, outputs)."""
        model = nn.Linear(self.inputs, self.outputs, bias=self.bias)
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        return model

    def synthetic_batch(
        self, n: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of integers, float32 (n, inputs), and their true sums, float32 (n, outputs)."""
        device = generator.device
        numbers = torch.randint(
            -LARGEST, LARGEST + 1, (n, self.inputs), generator=generator, device=device
        )
        inputs = numbers.to(torch.float32)
        targets = inputs @ true_weight(self.inputs, self.outputs).to(device).T
        return inputs, targets + TRUE_BIAS if self.bias else targets

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean squared error of all sums."""
        return F.mse_loss(outputs, targets)
