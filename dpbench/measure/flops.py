"""Counts the floating-point operations of an architecture."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dpbench.architecture import Architecture, items_per_sample
from dpbench.data.batch import call
from dpbench.data.datasets import Dataset
from dpbench.data.items import Source

SAMPLES = 2


def flops_per_item(architecture: Architecture, source: Source, device: torch.device) -> float:
    """Count the operations of forward and backward of the plain model for one item, 2 per
    multiply-add.

    Matrix products, convolutions and attention count, as torch's FlopCounterMode sees them run. The
    gradient of the model's input, which a step does not compute, is left out; attention is split
    into its products, because the counter does not know the CPU's fused kernel.
    """
    inputs, targets = source.select(torch.arange(min(SAMPLES, len(source))))
    batch = Dataset(inputs=inputs, targets=targets)
    try:  # on meta tensors: computing a large model takes seconds and gigabytes
        operations = _count(architecture, batch, torch.device("meta"))
    except Exception:  # a model that reads values needs real tensors
        operations = _count(architecture, batch, device)
    return operations / (len(batch) * items_per_sample(architecture))


def _count(architecture: Architecture, batch: Dataset, device: torch.device) -> int:
    with device:
        module = architecture.build_model().to(device).eval()  # batch norm accepts one item
    inputs, targets = batch.to(device).select(slice(None))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        architecture.loss(call(module, inputs), targets).backward()  # type: ignore[no-untyped-call]
    return int(counter.get_total_flops())
