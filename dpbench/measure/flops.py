"""How many floating-point operations a training step needs for one item, counted by torch."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dpbench.architecture import Architecture
from dpbench.data.datasets import Dataset

SAMPLES = 2


def count_flops_per_item(
    architecture: Architecture, dataset: Dataset, device: torch.device
) -> float:
    """Operations of forward and backward of the plain model for one item, 2 per multiply-add.

    Matrix products, convolutions and attention count, as torch's FlopCounterMode sees them run.
    It leaves out what a step does not do, the gradient of the model's input; attention is taken
    apart into its products, because the counter does not know the fused kernel of the CPU.
    """
    module = architecture.build_model().to(device).eval()  # batch norm needs no batch then
    samples = min(SAMPLES, len(dataset))
    inputs, targets = dataset.inputs[:samples], dataset.targets[:samples]
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        architecture.loss(module(inputs), targets).backward()  # type: ignore[no-untyped-call]
    return float(counter.get_total_flops()) / samples
