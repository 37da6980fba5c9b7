from __future__ import annotations

import signal

import pytest

from dpbench import errors
from dpbench.errors import DpbenchError, Interrupted, UnknownName, UsageError

EXIT_STATUSES = {
    "DpbenchError": 1,
    "UsageError": 2,
    "UnknownName": 2,
    "StoreError": 2,
    "NewerSchema": 2,
    "DataError": 2,
    "LaunchError": 1,
    "TrainingFailed": 1,
    "Interrupted": 130,
}


def classes() -> dict[str, type[DpbenchError]]:
    return {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }


def example(kind: type[DpbenchError]) -> DpbenchError:
    if kind is UnknownName:
        return UnknownName("backend", "glo", ["gloo"])
    return Interrupted(signal.SIGINT) if kind is Interrupted else kind("what, got, expected")


@pytest.mark.parametrize("name", EXIT_STATUSES)
def test_every_error_has_its_exit_status_and_is_in_the_list_of_the_module(name: str) -> None:
    error = example(classes()[name])
    assert error.exit_status == EXIT_STATUSES[name]
    assert isinstance(error, DpbenchError)
    assert f"{name} " in (errors.__doc__ or "")


def test_there_are_no_other_errors() -> None:
    assert set(classes()) == set(EXIT_STATUSES)


def test_an_unknown_name_is_a_usage_error_that_says_which_names_there_are() -> None:
    error = UnknownName("backend", "glo", ["gloo", "nccl"])
    assert isinstance(error, UsageError)
    assert str(error) == "unknown backend 'glo'. Did you mean 'gloo'? Known: gloo, nccl."
    assert error.got == "glo"


def test_nothing_is_suggested_where_nothing_is_near() -> None:
    error = UnknownName("topology", "h100", ["a100", "h100-nvswitch-ndr"])
    assert "Did you mean 'h100-nvswitch-ndr'?" in str(error)  # 4 of 17 letters, but the first
    assert "Did you mean 'gloo'?" in str(UnknownName("backend", "GLOO", ["gloo", "nccl"]))
    error = UnknownName("backend", "carrier pigeon", (name for name in ("gloo", "nccl")))
    assert str(error) == "unknown backend 'carrier pigeon'. Known: gloo, nccl."


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_an_interruption_has_the_exit_status_of_its_signal(number: int, status: int) -> None:
    error = Interrupted(number, "interrupted: 3 of 9 trials are stored")
    assert (error.exit_status, error.signal_number) == (status, number)
    assert str(error) == "interrupted: 3 of 9 trials are stored"
