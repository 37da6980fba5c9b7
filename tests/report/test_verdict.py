"""A check on the terminal and as data."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbench.analysis.comparisons.verdict import Assessment, assess
from dpbench.errors import UsageError
from dpbench.messages import one_line
from dpbench.records import Status
from dpbench.report.export.formats import MARKUP, escape
from dpbench.report.verdict import (
    answer,
    benchmark_action,
    change,
    headline,
    interval,
    junit,
    labels,
    pull_request,
    reading,
    sentence,
    tool,
)
from tests.analysis.builders import (
    ALL_PASS,
    INCONCLUSIVE,
    QUIET,
    REGRESSED,
    assessment,
    record,
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


def test_it_has_the_outcome_a_table_and_folded_notes() -> None:
    lines = pull_request(REGRESSED.verdict, ["a note"]).splitlines()
    assert lines[0] == "### dpbench check: regressed"
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 4
    assert len({line.count("|") for line in rows}) == 1
    assert lines[-3:] == ["- a note", "", "</details>"]


def test_nothing_in_a_note_is_markup_or_mentions_anyone() -> None:
    assert escape("see @team, #12 | <b>x</b> `rm` [a](b)\n# head") == (
        "see @\u200bteam, #\u200b12 \\| \\<b\\>x\\</b\\> \\`rm\\` \\[a\\](b) # head"
    )


@given(st.text(alphabet=st.sampled_from("ab \\`*_[]<>|~&@#\n!-\u200b"), max_size=30))
def test_what_is_escaped_reads_as_it_was(text: str) -> None:
    written = escape(text)
    assert not re.search(r"[@#](?=\w)", written)
    assert re.sub(r"\\(.)", r"\1", written).replace("\u200b", "") == one_line(text)
    assert not MARKUP.search(re.sub(r"\\.", "", written))


ATTRIBUTES = {
    "testsuites": {"name", "tests", "failures", "errors", "time"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time", "timestamp"},
    "testcase": {"name", "classname", "time"},
    "failure": {"message", "type"},
    "error": {"message", "type"},
    "skipped": {"message"},
    "system-out": set(),
}
"""Of the elements and attributes in Jenkins' junit-10.xsd, those that are used."""
INSIDE = {
    "testsuites": {"testsuite"},
    "testsuite": {"testcase", "system-out"},
    "testcase": {"failure", "error", "skipped"},
}


def suite(
    assessment: Assessment, *, strict: bool = False, notes: tuple[str, ...] = ()
) -> ElementTree.Element:
    text = junit(assessment, strict=strict, notes=notes, started_utc="2025-01-01T00:00:00")
    found = ElementTree.fromstring(text.encode()).find("testsuite")
    assert found is not None
    return found


def check(element: ElementTree.Element) -> None:
    assert set(element.attrib) == ATTRIBUTES[element.tag]
    for child in element:
        assert child.tag in INSIDE[element.tag]
        check(child)


@pytest.mark.parametrize("found", [ALL_PASS, REGRESSED, INCONCLUSIVE])
def test_elements_and_attributes_are_those_of_the_schema(found: Assessment) -> None:
    text = junit(found, strict=False, notes=("note",), started_utc="2025-01-01T00:00:00")
    check(ElementTree.fromstring(text.encode()))


def test_a_regression_is_a_failure_with_its_numbers() -> None:
    found = suite(REGRESSED)
    assert (found.get("tests"), found.get("failures"), found.get("skipped")) == ("2", "1", "0")
    first, second = found.findall("testcase")
    assert len(first) == 0
    assert second.get("classname") == "dpbench.images_per_second"
    assert second.get("name") == "ddp/gloo ×1, batch 32"
    failure = second.find("failure")
    assert failure is not None
    assert failure.get("message") == (
        "regressed: 10.0 % slower (90 % interval 9.0 to 11.0 % slower), tolerance 3 %"
    )


def test_a_row_without_numbers_has_its_reason_and_an_improvement_is_called_one() -> None:
    failed = side("after", [record(trial(), status=Status.FAILED, reason="killed")])
    found = assess([(side("before", runs(trial(), QUIET)), failed)], {"images_per_second": 0.03})
    (skipped,) = suite(found).findall("testcase")[0]
    assert skipped.get("message") == "inconclusive: no completed repetition of the candidate"
    (better,) = assessment({16: slower(QUIET, -0.2)}).verdict.rows
    assert sentence(better) == (
        "20.0 % faster (90 % interval 19.3 to 20.7 % faster), tolerance 3 %"
    )


@pytest.mark.parametrize(("strict", "tag"), [(False, "skipped"), (True, "failure")])
def test_inconclusive_is_skipped_or_if_strict_a_failure(strict: bool, tag: str) -> None:
    (case,) = suite(INCONCLUSIVE, strict=strict).findall("testcase")
    assert [child.tag for child in case] == [tag]


def test_what_could_not_be_measured_is_an_error() -> None:
    broken = replace(ALL_PASS, failures=(("ddp/gloo ×2, batch 8", "failed: rank 1\x07 <died>"),))
    found = suite(broken)
    assert found.get("errors") == "1"
    case = found.findall("testcase")[-1]
    assert case[0].get("message") == "failed: rank 1 <died>"


def test_control_characters_of_notes_do_not_break_the_file() -> None:
    said = suite(ALL_PASS, notes=("a\x00b \x1b[31mred & <b>",)).findtext("system-out")
    assert said is not None
    assert said.splitlines()[-1] == "a b [31mred & <b>"


def test_an_entry_has_the_candidates_value_with_its_spread() -> None:
    _, entry = json.loads(benchmark_action(REGRESSED.verdict))
    assert set(entry) == {"name", "unit", "value", "range", "extra"}
    assert entry["name"] == "images_per_second, ddp/gloo ×1, batch 32"
    assert entry["unit"] == "images/s"
    assert entry["value"] == pytest.approx(909.08, abs=0.02)
    assert entry["range"] == "± 9"
    assert entry["extra"] == (
        "regressed against before: 10.0 % slower (90 % interval 9.0 to 11.0 % slower), "
        "tolerance 3 %, n = 5"
    )


def test_a_file_has_one_direction() -> None:
    assert tool(["images_per_second", "efficiency"]) == "customBiggerIsBetter"
    assert tool(["step_seconds_p95", "peak_memory_bytes"]) == "customSmallerIsBetter"
    with pytest.raises(UsageError, match="one direction a file"):
        tool(["images_per_second", "peak_memory_bytes"])
