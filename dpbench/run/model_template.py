"""A model of your own for dpbench. Run it as it is, then replace its parts with yours:

    dpbench sweep --arch my_model.py:make --gpus 2
    dpbench sweep --arch my_model.py:make:width=2048 --gpus 2
    dpbench train --arch my_model.py:make --gpus 2

Every process imports this file and calls make(), with the same seed in all of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

FEATURES, CLASSES = 32, 4


def make(width: int = 1024) -> tuple[nn.Module, Any, Any]:
    """Returns (model, batch, loss). Its parameters are the options behind the second colon.

    Build a new model at every call, on the CPU: dpbench moves it to the devices.
    """
    hidden = [nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*hidden, nn.Linear(width, CLASSES))
    return model, batch, loss


def batch(n: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """`n` inputs and their targets: tensors whose first dimension is the sample.

    Draw from `generator`: all processes must get the same. The inputs may also be a tuple, which
    goes to the model as model(*inputs), or a dict, as model(**inputs).
    """
    inputs = torch.randn(n, FEATURES, generator=generator)
    targets = inputs[:, :CLASSES].argmax(dim=1)  # something that can be learned
    return inputs, targets


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over the samples, a scalar: every sample has the same weight."""
    return nn.functional.cross_entropy(outputs, targets)
