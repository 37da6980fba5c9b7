"""Labels of implementations are sorted as people read them."""

from __future__ import annotations

import random

from dpbench.specs.traits import IMPLEMENTATIONS, place_of


def test_numbers_in_labels_are_sorted_by_their_value() -> None:
    labels = [
        "ddp(lr 1e-05)",
        "ddp(lr 0.05)",
        "ddp(lr 0.1)",
        "torch-ddp(20 steps)",
        "torch-ddp(100 steps)",
    ]
    shuffled = random.Random(0).sample(labels, len(labels))
    assert sorted(shuffled, key=place_of) == labels


def test_implementations_stand_in_their_order_and_unknown_ones_behind_them() -> None:
    known = list(IMPLEMENTATIONS)
    assert sorted(["horovod", *reversed(known)], key=place_of) == [*known, "horovod"]


def test_a_plain_implementation_stands_before_its_variants() -> None:
    assert sorted(["ddp(bf16)", "ddp"], key=place_of) == ["ddp", "ddp(bf16)"]
