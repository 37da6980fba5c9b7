"""A check on the terminal and as data."""

from __future__ import annotations

import re

from dpbench.analysis.comparisons.verdict import assess
from dpbench.report.verdict import (
    answer,
    change,
    headline,
    interval,
    labels,
    reading,
)
from tests.analysis.builders import (
    ALL_PASS,
    INCONCLUSIVE,
    QUIET,
    REGRESSED,
    assessment,
    runs,
    side,
    slower,
    trial,
)


def test_a_row_shows_how_much_worse_with_interval_tolerance_and_sample_size() -> None:
    lines = answer(REGRESSED, (), exit_status=0).text.splitlines()
    assert max(map(len, lines)) <= 100
    first = next(k for k, line in enumerate(lines) if line.endswith(" 5  regressed"))
    assert lines[first].startswith("ddp/gloo ×1,   1,000 ± 10     909 ± 9  10.0 %   +9.0 to ")
    assert re.search(r" 100 / [23] / 100 % ", lines[first])  # 2.5 % of two rows
    assert "slower" in lines[first + 1]
    # Welch: 0.5 % standard error, t(8) one-sided 1.86: 10 ± 1 %.
    assert lines[first + 1].split("  ")[0] == "batch 32"
    assert lines[first + 1].endswith("  +11.0 %")
    assert " 3 % " in lines[first]
    assert any(line.count("(images/s)") == 2 for line in lines)


def test_the_headline_says_who_is_to_blame() -> None:
    assert headline(ALL_PASS.verdict) == "pass: 1 row, none worse by more than its tolerance"
    assert headline(REGRESSED.verdict) == (
        "regressed: 1 of 2 rows, worse by more than tolerated: ddp/gloo ×1, batch 32"
    )
    assert headline(INCONCLUSIVE.verdict).startswith("INCONCLUSIVE: 1 of 1 row")


def test_the_answer_begins_with_the_headline_and_says_how_to_settle_it() -> None:
    first = answer(INCONCLUSIVE, (), exit_status=0).text.splitlines()[0]
    assert first.startswith("INCONCLUSIVE: 1 of 1 row, neither surely within the tolerance nor ")
    assert first.endswith(
        "not even 200 repetitions would settle it: raise the tolerance, or find a quieter machine"
    )
    found = assessment({16: [1000.0, 1070.0, 930.0, 1035.0, 965.0]})
    assert found.verdict.outcome == "inconclusive"
    needed = found.verdict.rows[0].repetitions_needed
    assert needed is not None
    assert needed > 5
    said = headline(found.verdict)
    assert said.endswith(f"{needed} repetitions would settle it (--repetitions {needed})")


def test_both_confidence_levels_are_named_where_they_differ() -> None:
    text = " ".join(answer(REGRESSED, (), exit_status=0).text.split())
    assert (
        "± of baseline and candidate is their 95 % interval; the change has a 90 % one, of two "
        "one-sided bounds at 95 %"
    ) in text


def test_a_faster_candidate_is_called_faster() -> None:
    (better,) = assessment({16: slower(QUIET, -0.47)}).verdict.rows
    assert change(better) == "47.0 % faster"
    assert interval(better).endswith(" % faster")
    (equal,) = assessment({16: [999.0, 1011, 989, 1006, 995]}).verdict.rows
    assert " % faster to " in interval(equal)
    assert interval(equal).endswith(" % slower")


def test_a_long_list_is_cut_with_its_count() -> None:
    many = assessment({size: slower(QUIET, 0.2) for size in (1, 2, 3, 4, 5)})
    assert headline(many.verdict).endswith("ddp/gloo ×1, batch 3; and 2 more")


def test_a_metric_is_a_column_only_if_there_are_several() -> None:
    assert "Metric" not in answer(ALL_PASS, (), exit_status=0).text
    both = assessment({16: QUIET}, tolerances={"images_per_second": 0.1, "step_seconds_p95": 0.1})
    assert "Metric" in answer(both, (), exit_status=0).text


def test_a_change_is_pointed_out_where_the_whole_interval_says_so() -> None:
    def said(factor: float) -> str:
        runs = {16: slower(QUIET, factor)}
        found = assessment(runs, tolerances={"images_per_second": 0.05})
        return answer(found, (), exit_status=0).text

    assert "slower or worse, within the tolerance: ddp/gloo ×1, batch 16" in said(0.015)
    assert "faster or better, by its whole interval: ddp/gloo ×1, batch 16" in said(-0.4)
    assert "interval:" not in said(0.0)
    assert "within the tolerance:" not in said(0.0)


def test_a_lopsided_interval_that_holds_no_change_is_called_no_change() -> None:
    """Runs that are much faster, but so uneven that the bounds reach beyond zero."""
    wild = [700.0, 900.0, 9000.0, 9000.0, 1000.0]
    found = assessment({16: wild}, tolerances={"images_per_second": 5.0})
    (row,) = found.verdict.rows
    assert row.outcome == "pass"
    assert row.low is not None
    assert row.high is not None
    assert row.low < 1 < row.high
    text = answer(found, (), exit_status=0).text
    assert "faster or better" not in text
    assert "slower or worse" not in text


def test_equal_runs_have_no_negative_zero() -> None:
    table = answer(assessment({16: QUIET}), (), exit_status=0).text.split("\n\n")[1]
    assert " 0.0 % " in table
    assert "-0.0" not in table


def test_data_hold_ratios_bounds_and_what_was_decided() -> None:
    data = answer(REGRESSED, ["a note"], exit_status=0).data
    assert data["outcome"] == "regressed"
    assert data["notes"] == ["a note"]
    row = data["rows"][1]
    assert row["configuration"] == "ddp/gloo ×1, batch 32"
    assert row["outcome"] == "regressed"
    assert row["repetitions"] == 5
    assert 1.08 < row["slowdown_low"] < row["slowdown"] < row["slowdown_high"] < 1.12


def test_sentences_name_the_metric_where_there_are_several() -> None:
    both = assessment(
        {16: slower(QUIET, 0.015), 32: slower(QUIET, 0.2)},
        tolerances={"images_per_second": 0.05, "step_seconds_p95": 0.3},
    )
    assert headline(both.verdict) == (
        "regressed: 1 of 4 rows, worse by more than tolerated: "
        "images_per_second of ddp/gloo ×1, batch 32"
    )
    (changed,) = [line for line in reading(both.verdict.rows) if line.startswith("slower or worse")]
    assert "step_seconds_p95 of ddp/gloo ×1, batch 32" in changed


def test_several_candidates_have_their_own_names() -> None:
    base = side("torch-ddp", runs(trial("torch-ddp"), QUIET), where={"implementation": "torch-ddp"})
    candidates = [
        side(name, runs(trial(name, backend), QUIET), where={"implementation": name})
        for name, backend in (("ddp", "gloo"), ("dp", "threads"))
    ]
    found = assess([(base, candidate) for candidate in candidates], {"images_per_second": 0.03})
    assert labels(found.verdict.rows) == ["ddp/gloo ×1, batch 32", "dp ×1, batch 32"]


def test_sides_of_different_sizes_are_both_counted() -> None:
    text = answer(assessment({16: QUIET[:3]}), (), exit_status=0).text
    assert "  5, 3  " in text
    assert "n: runs of the baseline, of the candidate" in text
    row = answer(assessment({16: QUIET[:3]}), (), exit_status=0).data["rows"][0]
    assert (row["baseline_repetitions"], row["candidate_repetitions"]) == (5, 3)
    assert row["baseline_value_low"] < row["baseline_value"] < row["baseline_value_high"]
