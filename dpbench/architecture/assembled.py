"""Architectures that dpbench puts together of what others wrote, and so has to try out."""

from __future__ import annotations


class Assembled:
    """The members that are the same in all of them."""

    default_dataset: str = "synthetic"
    flops_per_item: float | None = None
    """Nobody derived them."""
