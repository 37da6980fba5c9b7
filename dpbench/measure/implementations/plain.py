"""`single` and `independent`: the module itself."""

from __future__ import annotations

import torch

from dpbench.measure.implementations.model import Plain, Settings


def plain(module: torch.nn.Module, settings: Settings, rank: int) -> Plain:
    """A copy that knows of no other."""
    return Plain(module)


WRAPPERS = {"single": plain, "independent": plain}
