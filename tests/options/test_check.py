"""The options of a check: each of them has an effect."""

from __future__ import annotations

from dpbench.options.check import SWEEP_OPTIONS_OF_CHECK, CheckOptions
from dpbench.options.model import options_of

OF_VERDICT = {
    *("candidate", "baseline", "against", "against_ref", "against_python", "force", "strict"),
    *("tolerance", "metric", "budget", "junit", "markdown"),
}


def test_an_option_affects_the_verdict_or_has_the_name_of_an_option_of_its_sweep() -> None:
    measured = {n for n, info in options_of(CheckOptions).items() if info.scope == "measured"}
    assert measured == SWEEP_OPTIONS_OF_CHECK | OF_VERDICT
    assert not SWEEP_OPTIONS_OF_CHECK & OF_VERDICT
