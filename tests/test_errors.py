from __future__ import annotations

from dpbench.errors import UnknownName, UsageError


def test_an_unknown_name_is_a_usage_error_that_says_which_names_there_are() -> None:
    error = UnknownName("backend", "glo", ["gloo", "nccl"])
    assert isinstance(error, UsageError)
    assert str(error) == "backend: got 'glo'; did you mean 'gloo'? Expected one of gloo, nccl"
    known = [f"{letter}{number}" for letter in "abcde" for number in range(8)]
    assert str(UnknownName("key", "c3x", known)) == "key: got 'c3x'; did you mean 'c3'?"
