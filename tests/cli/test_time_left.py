"""How much longer a sweep takes: known answers on plans of a few trials."""

from __future__ import annotations

from dpbench.cli.time_left import TimeLeft
from tests.analysis.builders import trial
from tests.cli.palindrome import PALINDROME, A, B, again, skipped, took


def test_the_time_left_follows_what_the_same_configurations_took() -> None:
    """A took 10: B, B and A remain, and B is taken for a typical trial: 10 + 10 + 10. Then B
    took 2: B and A remain. Then B took 4: only A remains."""
    left = TimeLeft(PALINDROME)
    assert left.seconds() is None
    left.finished(took(A, 10.0))
    assert left.seconds() == 30.0
    left.finished(took(B, 2.0))
    assert left.seconds() == 2.0 + 10.0
    left.finished(took(again(B), 4.0))
    assert left.seconds() == 10.0
    left.finished(took(again(A), 11.0))
    assert left.seconds() == 0.0


def test_an_unknown_configuration_is_taken_for_the_mean_of_those_measured() -> None:
    c = trial("single", "none", batch_size=8)
    left = TimeLeft([A, B, c])
    left.finished(took(A, 10.0))
    left.finished(took(B, 2.0))
    assert left.seconds() == left.expected_seconds(c) == 6.0
    assert left.expected_seconds(again(A)) == 10.0


def test_a_skipped_trial_takes_no_time_and_says_nothing_of_the_others() -> None:
    left = TimeLeft(PALINDROME)
    left.finished(skipped(A))
    assert left.seconds() is None
    left.finished(took(B, 4.0))
    assert left.seconds() == 4.0 + 0.0  # B again, and A, which will be skipped again


def test_what_an_earlier_run_took_counts_for_the_rest_of_the_plan() -> None:
    left = TimeLeft()
    left.finished(took(A, 10.0))
    left.finished(took(B, 2.0))
    left.planned([again(B), again(A), again(A, 2)])
    assert left.seconds() == 2.0 + 10.0 + 10.0
