"""Sizes and operations of large models, on torch's meta device: no memory, hardly any time."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dpbench.architecture import Architecture

IMAGES = 2


def parameter_count(architecture: Architecture) -> int:
    """Parameters of a new model; one that is used twice counts once."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in architecture.build_model().parameters())


def counted_flops(architecture: Architecture, side: int) -> tuple[float, float]:
    """What torch counts for one colour image of `side` × `side` pixels: forward; and backward too.

    Attention is taken apart into its products, as torch counts no fused one on a CPU.
    """
    with torch.device("meta"), sdpa_kernel(SDPBackend.MATH):
        model = architecture.build_model()
        images = torch.empty(IMAGES, 3, side, side)
        targets = torch.empty(IMAGES, dtype=torch.int64)
        with FlopCounterMode(display=False) as counter:
            loss = architecture.loss(model(images), targets)
            forward = counter.get_total_flops()
            torch.autograd.backward(loss)
    return forward / IMAGES, counter.get_total_flops() / IMAGES
