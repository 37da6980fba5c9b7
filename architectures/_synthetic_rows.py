"""Synthetic rows of tables that a model can learn: classes and clicks.

The hidden rules have a seed of their own, so that all batches of all processes follow the same.
"""

from __future__ import annotations

import torch

NOISE = 0.5
"""Standard deviation of the part that no model can learn; that of the learnable part is 1."""

_RULE_SEED = 20_240_229


def of_classes(
    n: int, generator: torch.Generator, *, features: int, classes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows, float32 (n, features), around the center of their class, and classes, int64 (n,)."""
    device = generator.device
    targets = torch.randint(classes, (n,), generator=generator, device=device)
    noise = torch.randn((n, features), generator=generator, device=device, dtype=torch.float32)
    return _rule(classes, features).to(device)[targets] + NOISE * noise, targets


def of_clicks(
    n: int, generator: torch.Generator, *, dense: int, tables: int, rows: int
) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Synthetic clicks: ((dense features, float32 (n, dense), one row of each table, int64 (n,
    tables)), clicked).

    `clicked`, float32 (n,) of 0 and 1, depends on the dense features and on whether the rows are
    even or odd. Low rows are frequent and high ones rare, as with real users and products: the
    probability of row k of r or a lower one is (k/r)^(1/3).
    """
    device = generator.device
    features = torch.randn((n, dense), generator=generator, device=device, dtype=torch.float32)
    uniform = torch.rand((n, tables), generator=generator, device=device, dtype=torch.float64)
    indices = (uniform**3 * rows).long()
    likes = features @ _rule(dense).to(device) / dense**0.5
    parity = (1 - 2 * (indices % 2)).float()
    likes = likes + parity @ _rule(tables).to(device) / tables**0.5
    return (features, indices), (likes > 0).float()


def _rule(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(_RULE_SEED)
    return torch.randn(shape, generator=generator, dtype=torch.float32)
