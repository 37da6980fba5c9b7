from __future__ import annotations

import numpy as np

from dpbench.data.hold_out import every_fifth, every_fifth_by_size


def test_what_is_held_out_is_the_fifth_the_tenth_and_so_on_of_its_class() -> None:
    targets = np.array([1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0])
    assert np.flatnonzero(every_fifth(targets)).tolist() == [6, 11]


def test_of_a_class_of_fewer_than_five_none_is_held_out() -> None:
    assert not every_fifth(np.array([0, 1, 2, 0, 1, 2])).any()


def test_of_numbers_the_fifth_the_tenth_and_so_on_in_their_order_of_size_are_held_out() -> None:
    numbers = np.array([9.0, 1, 8, 2, 7, 3, 6, 4, 5, 0, 10])
    assert numbers[every_fifth_by_size(numbers)].tolist() == [9, 4]


def test_of_equal_numbers_the_earlier_comes_first() -> None:
    assert np.flatnonzero(every_fifth_by_size(np.zeros(11))).tolist() == [4, 9]
