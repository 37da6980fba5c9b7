"""`single`: the module itself, on one device."""

from __future__ import annotations

import torch

from dpbench.measure.implementations.model import Plain
from dpbench.specs import ParallelSpec

TRAITS = {
    "order": 120,
    "description": "the plain module on one device",
    "exchange": "none",
    "largest_group": 1,
}


def wrap(module: torch.nn.Module, spec: ParallelSpec, rank: int) -> Plain:
    """Leave `module` unchanged."""
    return Plain(module)
