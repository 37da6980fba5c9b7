from __future__ import annotations

from dpbench.errors import UnknownName, UsageError


def test_an_unknown_name_is_a_usage_error_that_says_which_names_there_are() -> None:
    error = UnknownName("backend", "glo", ["gloo", "nccl"])
    assert isinstance(error, UsageError)
    assert str(error) == "unknown backend 'glo'. Did you mean 'gloo'? Known: gloo, nccl."
    assert error.got == "glo"


def test_of_many_names_one_is_suggested_or_the_nearest_three_are_listed() -> None:
    known = [f"{letter}{number}" for letter in "abcde" for number in range(8)]
    assert str(UnknownName("key", "c3x", known)) == "unknown key 'c3x'. Did you mean 'c3'?"
    words = str(UnknownName("key", "3xxx", known))
    assert words.startswith("unknown key '3xxx'. The nearest of 40: ")
    assert words.count(",") == 2
