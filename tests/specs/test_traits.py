"""Labels of implementations are sorted as people read them."""

from __future__ import annotations

import random
from collections.abc import Iterable

from dpbench.specs.traits import IMPLEMENTATIONS, implementation_order


def in_order(labels: Iterable[str]) -> list[str]:
    """Labels, each behind the name that it begins with."""
    return sorted(labels, key=lambda label: implementation_order(label.partition("(")[0], label))


def test_numbers_in_labels_are_sorted_by_their_value() -> None:
    labels = [
        "ddp(lr 1e-05)",
        "ddp(lr 0.05)",
        "ddp(lr 0.1)",
        "torch-ddp(20 steps)",
        "torch-ddp(100 steps)",
    ]
    shuffled = random.Random(0).sample(labels, len(labels))
    assert in_order(shuffled) == labels


def test_implementations_stand_in_their_order_and_unknown_ones_behind_them() -> None:
    known = list(IMPLEMENTATIONS)
    assert in_order(["horovod", *reversed(known)]) == [*known, "horovod"]


def test_a_plain_implementation_stands_before_its_variants() -> None:
    assert in_order(["ddp(bf16)", "ddp"]) == ["ddp", "ddp(bf16)"]
