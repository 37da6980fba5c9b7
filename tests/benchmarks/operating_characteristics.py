"""What `dpbench check` does at spreads between runs of 1, 3 and 5 %, with its own functions.

The tolerance is 3 %. "One look" judges 5 runs a side once, as a stored candidate is judged.
"Growing" begins with 5 and adds half as many again while a row is undecided, up to five looks: 27.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dpbench.analysis.comparisons.differences import ALPHA, paired, welch
from dpbench.analysis.comparisons.verdict import ALPHA_OF_A_LOOK, decide
from dpbench.run.gate.judging import MOST_LOOKS
from dpbench.run.sweep.grid import next_repetitions
from tests.benchmarks.figure import Figure

CHECKS = 20_000
TOLERANCE, FIRST = 0.03, 5
SPREADS = (0.01, 0.03, 0.05)
TRUTHS = {"unchanged": 0.0, "at the tolerance": 0.03, "twice the tolerance": 0.06}
MOST_WRONG = {"unchanged": 0.01, "at the tolerance": 0.07, "twice the tolerance": 0.01}
"""Unchanged candidates that regress, and slower ones that pass: at the tolerance either is one."""

Shares = tuple[float, float]
"""Of checks that regressed, and that passed."""


def run() -> Iterator[Figure]:
    for spread in SPREADS:
        for truth, slower in TRUTHS.items():
            once, growing = _one_look(spread, slower), _growing(spread, slower)
            wrong = [max(_wrong(truth, shares)) for shares in (once, growing)]
            yield Figure(
                name=f"check at 3 % tolerance, candidate {truth}, {spread:.0%} between runs",
                value=f"one look {_words(once)}; growing {_words(growing)}",
                target=f"wrong in at most {MOST_WRONG[truth]:.0%}",
                met=max(wrong) <= MOST_WRONG[truth],
            )


def _wrong(truth: str, shares: Shares) -> list[float]:
    regressed, passed = shares
    return {
        "unchanged": [regressed],
        "at the tolerance": [regressed, passed],
        "twice the tolerance": [passed],
    }[truth]


def _words(shares: Shares) -> str:
    regressed, passed = shares
    return (
        f"{regressed:.1%} regressed, {passed:.1%} pass, {1 - regressed - passed:.1%} inconclusive"
    )


def _one_look(spread: float, slower: float) -> Shares:
    before, after = _runs(spread, slower, FIRST)
    regressed, passed, _ = decide(welch(before, after), np.array([math.log1p(TOLERANCE)]), ALPHA)
    return float(regressed.mean()), float(passed.mean())


def _growing(spread: float, slower: float) -> Shares:
    """Pass by pass, as what is measured for a check is compared."""
    sizes = [FIRST]
    while len(sizes) < MOST_LOOKS:
        sizes.append(next_repetitions(sizes[-1]))
    before, after = _runs(spread, slower, sizes[-1])
    limits = np.array([math.log1p(TOLERANCE)])
    regressed = np.zeros((CHECKS, 1), dtype=bool)
    passed = np.zeros((CHECKS, 1), dtype=bool)
    for size in sizes:
        found = paired(before[..., :size], after[..., :size])
        slow, fine, _ = decide(found, limits, ALPHA_OF_A_LOOK)
        undecided: NDArray[np.bool_] = ~(regressed | passed)
        regressed |= slow & undecided
        passed |= fine & undecided
    return float(regressed.mean()), float(passed.mean())


def _runs(
    spread: float, slower: float, count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Logarithms of the times of both sides: a row a check."""
    rng = np.random.default_rng(21)
    before, after = rng.normal(scale=spread, size=(2, CHECKS, 1, count))
    return before, after + math.log1p(slower)
