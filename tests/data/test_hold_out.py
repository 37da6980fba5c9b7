from __future__ import annotations

import numpy as np

from dpbench.data.hold_out import every_fifth


def test_what_is_held_out_is_the_fifth_the_tenth_and_so_on_of_its_class() -> None:
    targets = np.array([1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0])
    assert np.flatnonzero(every_fifth(targets)).tolist() == [6, 11]


def test_of_a_class_of_fewer_than_five_none_is_held_out() -> None:
    assert not every_fifth(np.array([0, 1, 2, 0, 1, 2])).any()
