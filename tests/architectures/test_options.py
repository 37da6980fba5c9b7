from __future__ import annotations

import pytest

from dpbench.architectures import _options


def test_one_of_a_few_values_is_expected() -> None:
    _options.expect_one_of("depth", 18, (18, 50))
    with pytest.raises(ValueError, match=r"^depth: got 19, expected 18, 50$"):
        _options.expect_one_of("depth", 19, (18, 50))


def test_the_first_option_that_is_too_small_is_named() -> None:
    _options.expect_at_least(0, width=0, classes=None)
    with pytest.raises(ValueError, match=r"^layers: got 0, expected at least 1$"):
        _options.expect_at_least(1, width=1, layers=0, heads=-1)


@pytest.mark.parametrize("got", [-16, 0, 8, 17])
def test_a_multiple_is_positive(got: int) -> None:
    _options.expect_multiple("image", 32, of=16)
    with pytest.raises(ValueError, match=f"^image: got {got}, expected a multiple of 16$"):
        _options.expect_multiple("image", got, of=16)


def test_a_divisor_may_have_a_name() -> None:
    with pytest.raises(ValueError, match=r"^width: got 384, expected a multiple of heads, 5$"):
        _options.expect_multiple("width", 384, of=5, called="heads")
