"""`independent`: copies of the module that never exchange anything."""

from __future__ import annotations

import torch

from dpbench.measure.implementations.model import Plain
from dpbench.specs import ParallelSpec

TRAITS = {
    "order": 130,
    "description": "n plain copies started together, without communication",
    "exchange": "none",
}


def wrap(module: torch.nn.Module, spec: ParallelSpec, rank: int) -> Plain:
    """Leave `module` unchanged: it does not know the other copies."""
    return Plain(module)
