from __future__ import annotations

import signal

from dpbench import errors
from dpbench.errors import DpbenchError, Interrupted, UnknownName, UsageError

EXIT_STATUSES = {
    "DpbenchError": 1,
    "UsageError": 2,
    "UnknownName": 2,
    "InvalidValue": 2,
    "StoreError": 2,
    "NewerSchema": 2,
    "DataError": 2,
    "LaunchError": 1,
    "TrainingFailed": 1,
}


def test_every_error_has_an_exit_status_and_is_in_the_list_of_the_module() -> None:
    kinds = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, Exception)
    }
    statuses = {name: kind.exit_status for name, kind in kinds.items() if name != "Interrupted"}
    assert statuses == EXIT_STATUSES
    assert Interrupted(signal.SIGTERM).exit_status == 143
    for name, kind in kinds.items():
        assert issubclass(kind, DpbenchError)
        assert f"{name} " in (errors.__doc__ or "")


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
