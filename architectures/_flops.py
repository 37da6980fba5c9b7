"""Floating-point operations of layers, for one item: 2 per multiply-add.

Only matrix products and convolutions count; biases, activations, pooling and dropout are below a
thousandth of them. The backward pass costs twice the forward: one product for the gradient of
the input and one for that of the weights. The first layer needs no gradient of its input, which
this convention, the usual one for quoting training FLOPs, ignores; torch's own counter leaves it
out and so reports less, by exactly the forward operations of the first layer.
"""

from __future__ import annotations

BACKWARD_PER_FORWARD = 2


def linear(inputs: int, outputs: int) -> int:
    """Forward operations of a fully connected layer."""
    return 2 * inputs * outputs


def convolution(in_channels: int, out_channels: int, kernel: int, output_side: int) -> int:
    """Forward operations of a square convolution that makes output_side × output_side pixels."""
    return output_side**2 * linear(in_channels * kernel**2, out_channels)


def attention(tokens: int, width: int) -> int:
    """Forward operations of the scores and the mixtures of a whole sequence, nothing masked."""
    return 2 * tokens * linear(tokens, width)


def training(forward: int) -> float:
    """Operations of forward and backward together."""
    return float(forward * (1 + BACKWARD_PER_FORWARD))
