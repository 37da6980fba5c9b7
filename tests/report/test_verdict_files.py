"""A check's verdict in the files that CI systems read."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from dpbench.analysis.comparisons.verdict import Assessment, assess
from dpbench.records.trial import Status
from dpbench.report.verdict_files import junit, pull_request
from tests.analysis.builders import (
    ALL_PASS,
    INCONCLUSIVE,
    QUIET,
    REGRESSED,
    assessment,
    record,
    runs,
    side,
    trial,
)


def test_it_has_the_outcome_a_table_and_folded_notes() -> None:
    lines = pull_request(REGRESSED.verdict, ["a note"]).splitlines()
    assert lines[0] == "### dpbench check: regressed"
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 4
    assert len({line.count("|") for line in rows}) == 1
    assert lines[-3:] == ["- a note", "", "</details>"]


def test_names_in_the_heading_are_no_markup() -> None:
    noisy = [1080.0, 920.0, 1060.0, 940.0, 1000.0]
    found = assessment({16: [value / 0.8 for value in QUIET], 32: noisy}).verdict
    rows = [replace(row, comparison=replace(row.comparison, label="a_b")) for row in found.rows]
    first, _, second, *_ = pull_request(replace(found, rows=tuple(rows)), []).splitlines()
    assert first == "### dpbench check: pass on average"
    assert second.endswith("inconclusive in 1 of 2 rows (a\\_b)")


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
    assert (found.get("tests"), found.get("failures"), found.get("skipped")) == ("3", "2", "0")
    whole, first, second = found.findall("testcase")
    assert whole.get("name") == "all rows of after"
    assert len(first) == 0
    assert second.get("classname") == "dpbench.images_per_second"
    assert second.get("name") == "ddp/gloo ×1, batch 32"
    failure = second.find("failure")
    assert failure is not None
    assert failure.get("message") == (
        "regressed: time per image: +10.0 % (+8.7 to +11.3 %), tolerance 3 %"
    )


def test_a_row_without_numbers_has_its_reason() -> None:
    failed = side("after", [record(trial(), status=Status.FAILED, reason="killed")])
    found = assess([(side("before", runs(trial(), QUIET)), failed)], {"images_per_second": 0.03})
    row, failure = suite(found).findall("testcase")
    assert row[0].get("message") == "inconclusive: no completed repetition of the candidate"
    assert failure[0].tag == "error"


@pytest.mark.parametrize(("strict", "tag"), [(False, "skipped"), (True, "failure")])
def test_inconclusive_is_skipped_or_if_strict_a_failure(strict: bool, tag: str) -> None:
    (case,) = suite(INCONCLUSIVE, strict=strict).findall("testcase")
    assert [child.tag for child in case] == [tag]
    assert str(case[0].get("message")).startswith("inconclusive: ")
    assert case.get("time") == "10.000"  # 5 repetitions of both sides, a second each


def test_what_could_not_be_measured_is_an_error() -> None:
    broken = replace(
        ALL_PASS, failures=(("ddp/gloo ×2, batch 8", "failed: rank 1\x07 <died>", 1.5),)
    )
    found = suite(broken)
    assert found.get("errors") == "1"
    case = found.findall("testcase")[-1]
    assert case[0].get("message") == "failed: rank 1 <died>"
