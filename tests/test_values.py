"""Any text is either a right value or one UsageError that names its option."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dpbench.errors import UsageError
from dpbench.values import (
    comma_list,
    duration_seconds,
    integer,
    known_name,
    positive_float,
    positive_int,
)

OPTION = "--some-option"
NUMBERLIKE = st.text(alphabet="0123456789-+.,_eEsmhinfat \t٣½", max_size=12)
TEXT = st.one_of(st.text(max_size=20), NUMBERLIKE)
MORE_DIGITS_THAN_PYTHON_CONVERTS = "1" * 5000
KNOWN = ("gloo", "nccl")


def outcome(parse: Callable[[], Any]) -> Any:
    """The parsed value, or None after a UsageError in one line that names the option."""
    try:
        return parse()
    except UsageError as caught:
        message, status = str(caught), caught.exit_status
    assert OPTION in message
    assert status == 2
    return None


@given(TEXT)
@example("٣")
@example("--5")
@example("1\x1f")
@example("")
def test_a_positive_int_is_one_or_an_error(text: str) -> None:
    value = outcome(lambda: positive_int(OPTION, text))
    assert value is None or (type(value) is int and value >= 1)
    if value is not None:
        assert int(text.strip()) == value  # int() alone strips fewer control characters
        assert text.isascii()


@given(TEXT, st.integers(min_value=-3, max_value=3))
def test_an_integer_is_never_below_the_least(text: str, least: int) -> None:
    value = outcome(lambda: integer(OPTION, text, least=least))
    assert value is None or (type(value) is int and value >= least)


@given(st.integers(min_value=0, max_value=10**18 - 1))
def test_every_integer_in_plain_digits_is_read(number: int) -> None:
    assert integer(OPTION, f" {number} ", least=0) == number


@given(TEXT)
@example("nan")
@example("-inf")
@example("1e400")
def test_a_positive_float_is_finite_and_above_zero_or_an_error(text: str) -> None:
    value = outcome(lambda: positive_float(OPTION, text))
    assert value is None or (type(value) is float and math.isfinite(value) and value > 0)


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_every_float_as_python_writes_it_is_read(number: float) -> None:
    assert positive_float(OPTION, repr(number)) == number


@given(TEXT)
@example("s")
@example("-5m")
@example("1e308h")
def test_a_duration_is_above_zero_or_an_error(text: str) -> None:
    value = outcome(lambda: duration_seconds(OPTION, text))
    assert value is None or (type(value) is float and math.isfinite(value) and value > 0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("90s", 90.0), ("5m", 300.0), ("1h", 3600.0), ("0.5h", 1800.0), (" 2 ", 2.0)],
)
def test_durations_have_units(text: str, seconds: float) -> None:
    assert duration_seconds(OPTION, text) == seconds


@given(TEXT)
def test_a_known_name_is_one_or_an_error(text: str) -> None:
    assert outcome(lambda: known_name(OPTION, text, KNOWN)) in (None, *KNOWN)


@given(TEXT)
@example(",")
@example("1,,2")
@example("1,2,1")
def test_a_list_holds_each_value_once_in_order_or_is_an_error(text: str) -> None:
    notes: list[str] = []
    values = outcome(lambda: comma_list(OPTION, text, positive_int, notes))
    if values is not None:
        typed = [int(token) for token in text.split(",")]
        assert values == tuple(dict.fromkeys(typed))
        assert len(notes) == len(typed) - len(values)
        assert all(OPTION in note for note in notes)


@given(st.lists(st.integers(1, 99), min_size=1, max_size=6))
def test_every_list_of_numbers_is_read(numbers: list[int]) -> None:
    text = ",".join(str(number) for number in numbers)
    assert comma_list(OPTION, text, positive_int, []) == tuple(dict.fromkeys(numbers))


def test_what_was_dropped_is_told() -> None:
    notes: list[str] = []
    assert comma_list(OPTION, "8, 4,8", positive_int, notes) == (8, 4)
    assert notes == ["--some-option: 8 is listed twice; it counts once"]


@pytest.mark.parametrize(
    ("parse", "message"),
    [
        (
            lambda: positive_int(OPTION, "1.5"),
            "--some-option: '1.5' is not a positive integer; write a whole number from 1 on",
        ),
        (
            lambda: integer(OPTION, "-1", least=0),
            "--some-option: '-1' is not an integer of at least 0; write a whole number from 0 on",
        ),
        (
            lambda: positive_float(OPTION, "inf"),
            "--some-option: 'inf' is not a positive number; write e.g. 0.5, 2 or 1e-3",
        ),
        (
            lambda: duration_seconds(OPTION, "5d"),
            "--some-option: '5d' is not a duration; expected seconds, or e.g. 90s, 5m, 1h",
        ),
        (
            lambda: known_name(OPTION, "glo", KNOWN),
            "unknown value for --some-option: 'glo'. Did you mean 'gloo'? Known: gloo, nccl.",
        ),
        (
            lambda: comma_list(OPTION, " ", positive_int, []),
            "--some-option is empty; expected a comma-separated list, or leave it out",
        ),
    ],
)
def test_an_error_says_what_was_typed_and_what_was_expected(
    parse: Callable[[], object], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        parse()
    assert str(caught.value) == message


def test_a_number_of_thousands_of_digits_is_an_error_that_does_not_fill_the_screen() -> None:
    with pytest.raises(UsageError, match="1…' is too large") as caught:
        positive_int(OPTION, MORE_DIGITS_THAN_PYTHON_CONVERTS)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", ["1_0", "١٢"])
def test_numbers_are_plain_decimals(text: str) -> None:
    with pytest.raises(UsageError):
        positive_float(OPTION, text)
    with pytest.raises(UsageError):
        duration_seconds(OPTION, f"{text}s")
