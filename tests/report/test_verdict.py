"""A check on the terminal and as data."""

from __future__ import annotations

from dpbench.report.verdict import answer, headline, row_verdict, sentence
from tests.analysis.builders import ALL_PASS, INCONCLUSIVE, QUIET, REGRESSED, assessment, slower


def test_the_first_line_is_the_verdict_with_its_interval() -> None:
    assert headline(ALL_PASS.verdict) == (
        "pass: images_per_second over 1 row: 0.0 % (-0.9 to +0.9 %), tolerance 3 %"
    )
    text = headline(REGRESSED.verdict)
    assert text.startswith("regressed: images_per_second over 2 rows: 4.9 % slower (")
    assert text.endswith("; beyond the tolerance by itself: ddp/gloo ×1, batch 32")


def test_an_inconclusive_check_says_what_it_excludes_and_what_would_settle_it() -> None:
    text = headline(INCONCLUSIVE.verdict)
    assert text.startswith("INCONCLUSIVE: images_per_second over 1 row: 3 % slower (-")
    assert "; it excludes more than " in text
    assert text.endswith("raise the tolerance, or find a quieter machine")
    found = headline(assessment({16: [1000.0, 1070.0, 930.0, 1035.0, 965.0]}).verdict)
    assert found.endswith(" passes would settle it (--repetitions 23)")


def test_a_row_shows_both_sides_its_change_and_what_it_says_by_itself() -> None:
    lines = answer(REGRESSED, (), exit_status=0).text.splitlines()
    assert max(map(len, lines)) <= 100
    assert any(line.count("(images/s)") == 2 for line in lines)
    same, slow = REGRESSED.verdict.rows
    assert (row_verdict(same), row_verdict(slow)) == ("within 3 %", "regressed")
    assert sentence(slow) == "10.0 % slower (+9.0 to +11.0 %), tolerance 3 %"
    (better,) = assessment({16: slower(QUIET, -0.47)}).verdict.rows
    assert sentence(better).startswith("47.0 % faster (")


def test_a_metric_is_a_column_only_if_there_are_several() -> None:
    assert "Metric" not in answer(ALL_PASS, (), exit_status=0).text
    both = assessment({16: QUIET}, tolerances={"images_per_second": 0.1, "step_seconds_p95": 0.1})
    text = answer(both, (), exit_status=0).text
    assert "Metric" in text
    assert "1 other metric or candidate below" in " ".join(text.split())


def test_the_data_have_the_verdict_of_each_metric_and_every_row() -> None:
    data = answer(REGRESSED, ["a note"], exit_status=3).data
    assert (data["outcome"], data["exit_status"], data["notes"]) == ("regressed", 3, ["a note"])
    (whole,) = data["metrics"]
    assert whole["low"] < whole["slowdown"] < whole["high"]
    # Power is one number: the passes that would settle it.
    assert [key for key in whole if "smallest" in key or "needed" in key] == ["repetitions_needed"]
    assert [row["regressed"] for row in data["rows"]] == [False, True]
