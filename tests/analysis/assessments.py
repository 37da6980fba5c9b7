"""Assessments by hand: what candidates were worse by in, an Assessment out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dpbench.analysis.assessment import Assessment, assess
from dpbench.records import TrialRecord
from tests.analysis.builders import trial
from tests.analysis.sides import runs, side

QUIET = (1000.0, 1010.0, 990.0, 1005.0, 995.0)
NOISY = (1000.0, 1300.0, 700.0, 1200.0, 800.0)


def slower(throughputs: Sequence[float], share: float) -> list[float]:
    """The same runs, each of them longer by `share`."""
    return [value / (1 + share) for value in throughputs]


def assessment(
    changes: Mapping[int, Sequence[float]],
    *extra: TrialRecord,
    tolerances: Mapping[str, float] | None = None,
) -> Assessment:
    """A quiet baseline, and a candidate with these throughputs by batch size."""
    before = side("before", *(runs(trial(batch_size=batch), QUIET) for batch in changes))
    after = side("after", *(runs(trial(batch_size=b), v) for b, v in changes.items()), list(extra))
    return assess([(before, after)], tolerances or {"images_per_second": 0.03})


PASSED = assessment({16: QUIET})
REGRESSED = assessment({16: QUIET, 32: slower(QUIET, 0.10)})
INCONCLUSIVE = assessment({16: NOISY})
