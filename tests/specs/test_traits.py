"""Labels of implementations are sorted as people read them."""

from __future__ import annotations

import random

from dpbench.specs.traits import IMPLEMENTATIONS, implementation_order


def test_implementations_stand_in_their_order_and_numbers_in_their_labels_by_value() -> None:
    """Plain ones before their variants, and unknown ones last."""
    variants = {
        "ddp": ["ddp", "ddp(bf16)", "ddp(lr 1e-05)", "ddp(lr 0.05)", "ddp(lr 0.1)"],
        "torch-ddp": ["torch-ddp(20 steps)", "torch-ddp(100 steps)"],
    }
    labels = [label for name in IMPLEMENTATIONS for label in variants.get(name, [name])]
    labels.append("horovod")
    shuffled = random.Random(0).sample(labels, len(labels))
    by_name = sorted(
        shuffled, key=lambda label: implementation_order(label.partition("(")[0], label)
    )
    assert by_name == labels
