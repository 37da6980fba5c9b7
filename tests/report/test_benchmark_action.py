"""The JSON that github-action-benchmark reads."""

from __future__ import annotations

import json

import pytest

from dpbench.errors import UsageError
from dpbench.report.benchmark_action import benchmark_action, tool
from tests.analysis.assessments import REGRESSED


def test_an_entry_has_the_candidates_value_with_its_spread() -> None:
    _, entry = json.loads(benchmark_action(REGRESSED.verdict))
    assert set(entry) == {"name", "unit", "value", "range", "extra"}
    assert entry["name"] == "images_per_second, ddp/gloo ×1, batch 32"
    assert entry["unit"] == "images/s"
    assert entry["value"] == pytest.approx(909.08, abs=0.02)
    assert entry["range"] == "± 9"
    assert entry["extra"] == (
        "regressed against before: worse by +10.0 % (90 % interval +9.0 to +11.0 %), "
        "tolerance 3 %, n = 5"
    )


def test_a_file_has_one_direction() -> None:
    assert tool(["images_per_second", "efficiency"]) == "customBiggerIsBetter"
    assert tool(["step_seconds_p95", "peak_memory_bytes"]) == "customSmallerIsBetter"
    with pytest.raises(UsageError, match="one direction a file"):
        tool(["images_per_second", "peak_memory_bytes"])
