"""What a check says and writes for CI systems; tests/golden has its table and its data."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from dpbench.analysis.comparisons.comparison import Comparison
from dpbench.analysis.metrics import COMPARED_METRICS
from dpbench.analysis.noise import MachineLoad
from dpbench.records.trial import Status
from dpbench.report.answers.check import change_words, check_answer, junit, quantity_of, summary_of
from tests.analysis.builders import (
    ALL_PASS,
    INCONCLUSIVE,
    NOISY,
    QUIET,
    REGRESSED,
    assessment,
    judged,
    record,
    runs,
    side,
    slower,
    trial,
)


def test_an_inconclusive_check_says_what_would_settle_it() -> None:
    text = summary_of(INCONCLUSIVE)
    assert text.startswith("inconclusive: time per image: +3 % (-")
    assert text.endswith("too noisy to decide here: find a quieter machine, or raise the tolerance")
    found = assessment({16: [1000.0, 1070.0, 930.0, 1035.0, 965.0]})
    advice = "; about 30 repetitions (now 5), 1 min: --repetitions 30"
    assert summary_of(found).endswith(advice)
    busy = MachineLoad(spoils_speeds=True)
    assert summary_of(replace(found, machine_load=busy)).endswith("free it and measure again")
    before, after = (
        side(label, runs(trial(), speeds[:3]))  # too few to be paired
        for label, speeds in (("before", QUIET), ("after", slower(QUIET, 0.5)))
    )
    for settled in (ALL_PASS, judged(before, after, in_turn=True)):
        assert "busy" not in summary_of(replace(settled, machine_load=busy))


def test_a_mean_that_passes_does_not_speak_for_a_row_that_is_inconclusive() -> None:
    faster = [value / 0.8 for value in QUIET]
    found = assessment({16: faster, 32: [1080.0, 920.0, 1060.0, 940.0, 1000.0]})
    assert summary_of(found).startswith("pass on average: time per image, mean of 2 rows: ")
    assert "; inconclusive in 1 of 2 rows (ddp/gloo ×1, batch 32)" in summary_of(found)
    assert [row.outcome for row in found.rows["images_per_second"]] == ["pass", "inconclusive"]


def test_the_change_says_of_what_it_is() -> None:
    both = assessment({16: QUIET}, tolerances={"images_per_second": 0.1, "step_seconds_p95": 0.1})
    assert summary_of(both).endswith("; 2 verdicts in all: see below")
    text = check_answer(both, exit_status=0).text
    speeds, steps = text.split("\nstep_seconds_p95, tolerance 10 %\n")
    assert "\nimages_per_second, tolerance 10 %\n" in speeds
    assert "in time" in speeds
    assert {"Baseline", "Candidate"} <= {*speeds.split()}, "at 80 columns"
    assert "in time" not in steps
    (row,) = both.rows["images_per_second"]
    for item, one in (("speech", "speech"), ("boxes", "box")):
        counted = COMPARED_METRICS["images_per_second"].counting([item])
        assert quantity_of([replace(row, metric=counted)]) == f"time per {one}"


@pytest.mark.parametrize(("share", "words"), [(-0.47, "-47.0 % ("), (11.0, "+1,100 % (+1,0")])
def test_large_changes_have_the_digits_that_their_interval_supports(
    share: float, words: str
) -> None:
    (verdict,) = assessment({16: slower(QUIET, share)}).verdicts
    assert verdict.change is not None
    assert change_words(verdict.change).startswith(words)


def test_names_in_markdown_are_no_markup_and_notes_are_folded() -> None:
    evil = replace(REGRESSED.baseline, label="a_b")
    answer = check_answer(replace(REGRESSED, baseline=evil, notes=("a note",)), exit_status=3)
    first, second, *lines = answer.markdown.split("\n\n")
    assert first.endswith("regressed in 1 of 2 rows (ddp/gloo ×1, batch 32)")
    assert second == "after (candidate) against a\\_b (baseline)"
    table = lines[0].splitlines()
    assert len(table) == 4
    assert len({line.count("|") for line in table}) == 1
    assert lines[-2].endswith("\n- a note")
    assert lines[-1] == "</details>\n"


SCHEMA = {
    "testsuites": {"testsuite", "name", "tests", "failures", "errors"},
    "testsuite": {
        *("testcase", "system-out", "name", "tests", "failures", "errors", "skipped", "timestamp")
    },
    "testcase": {"failure", "error", "skipped", "name", "classname"},
    "failure": {"message", "type"},
    "error": {"message", "type"},
    "skipped": {"message"},
    "system-out": set(),
}
"""The elements in Jenkins' junit-10.xsd that are used, with their elements and attributes."""


def suite(compared: Comparison, *, strict: bool = False) -> ElementTree.Element:
    """The inner element, after a look at every name."""
    text = junit(compared, strict=strict, started_utc="2025-01-01T00:00:00")
    whole = ElementTree.fromstring(text.encode())
    for element in whole.iter():
        assert {*element.attrib, *(child.tag for child in element)} <= SCHEMA[element.tag]
    return whole[0]


def test_a_regression_is_a_failure_with_its_numbers() -> None:
    found = suite(REGRESSED)
    assert (found.get("tests"), found.get("failures"), found.get("skipped")) == ("3", "2", "0")
    whole, first, second = found.findall("testcase")
    assert whole.get("name") == "all rows of after"
    assert len(first) == 0
    assert second.get("classname") == "dpbench.images_per_second"
    assert second.get("name") == "ddp/gloo ×1, batch 32"
    assert second[0].tag == "failure"
    assert second[0].get("message") == (
        "regressed: time per image: +10.0 % (+8.7 to +11.3 %), tolerance 3 %"
    )


@pytest.mark.parametrize(("strict", "tag"), [(False, "skipped"), (True, "failure")])
def test_an_inconclusive_verdict_is_skipped_or_if_strict_a_failure(strict: bool, tag: str) -> None:
    whole, *rows = suite(assessment({16: NOISY, 32: NOISY}), strict=strict).findall("testcase")
    assert str(whole[0].get("message")).startswith("inconclusive: ")
    assert [case[0].tag for case in (whole, *rows)] == [tag, "skipped", "skipped"]


def test_what_could_not_be_measured_is_an_error_and_its_row_has_the_reason() -> None:
    failed = side("after", [record(trial(), status=Status.FAILED, reason="rank 1\x07 <died>")])
    before = side("before", runs(trial(), QUIET))
    row, failure = suite(judged(before, failed)).findall("testcase")
    assert row[0].get("message") == "inconclusive: no completed repetition of the candidate"
    assert failure[0].tag == "error"
    assert str(failure[0].get("message")).endswith("rank 1 <died>")
