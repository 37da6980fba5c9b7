"""A check's verdict as files: Markdown for a pull request, and JUnit."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence

from dpbench.analysis.comparisons.verdict import Assessment, RowVerdict, Verdict
from dpbench.messages import one_line
from dpbench.report.formats import escape
from dpbench.report.numbers import quantity
from dpbench.report.verdict import headline, labels, reading, sentence, sides, table

SUITE = "dpbench check"
"""Name of the JUnit test suite."""


def pull_request(verdict: Verdict, notes: Sequence[str]) -> str:
    """The headline, the table, and the notes folded away."""
    outcome, _, rest = headline(verdict).partition(": ")
    return "\n".join(
        [
            f"### dpbench check: {outcome}",
            "",
            escape(f"{sides(verdict.rows)}: {rest}"),
            "",
            table(verdict.rows, "markdown"),
            "",
            "<details><summary>Notes</summary>",
            "",
            *(f"- {escape(note)}" for note in (*reading(verdict.rows), *notes)),
            "",
            "</details>",
            "",
        ]
    )


def junit(assessment: Assessment, *, strict: bool, notes: Sequence[str], started_utc: str) -> str:
    """A testcase per configuration and metric; regressed is a failure, inconclusive is skipped.

    With `strict`, inconclusive is a failure too. What could not be measured is an error.
    `started_utc` is ISO 8601 without fractions.
    """
    verdict = assessment.verdict
    named = zip(labels(verdict.rows), verdict.rows, strict=True)
    cases = [_case(name, row, strict=strict) for name, row in named]
    cases += [_error(label, how) for label, how in assessment.failures]
    counts = {
        "name": SUITE,
        "tests": str(len(cases)),
        "failures": str(sum(case.find("failure") is not None for case in cases)),
        "errors": str(len(assessment.failures)),
        "skipped": str(sum(case.find("skipped") is not None for case in cases)),
        "time": "0",
    }
    suites = ElementTree.Element("testsuites", _without_skipped(counts))
    suite = ElementTree.SubElement(suites, "testsuite", {**counts, "timestamp": started_utc})
    suite.extend(cases)
    said = "\n".join([headline(verdict), *notes])
    ElementTree.SubElement(suite, "system-out").text = _printable(said)
    ElementTree.indent(suites)
    text: str = ElementTree.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _case(name: str, row: RowVerdict, *, strict: bool) -> ElementTree.Element:
    comparison = row.comparison
    case = ElementTree.Element(
        "testcase",
        classname=one_line(f"dpbench.{comparison.metric}"),
        name=one_line(name),
        time="0",
    )
    if row.outcome == "regressed" or (strict and row.outcome == "inconclusive"):
        failure = ElementTree.SubElement(case, "failure", message=_message(row), type=row.outcome)
        failure.text = _printable(
            f"baseline {quantity(comparison.baseline)}\ncandidate {quantity(comparison.candidate)}"
        )
    elif row.outcome == "inconclusive":
        ElementTree.SubElement(case, "skipped", message=_message(row))
    return case


def _error(label: str, how: str) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase", classname="dpbench.measuring", name=one_line(label), time="0"
    )
    ElementTree.SubElement(case, "error", message=one_line(how), type="measuring")
    return case


def _message(row: RowVerdict) -> str:
    return one_line(f"{row.outcome}: {sentence(row)}")


def _without_skipped(counts: dict[str, str]) -> dict[str, str]:
    """The schema gives the outer element no count of skipped cases."""
    return {name: count for name, count in counts.items() if name != "skipped"}


def _printable(text: str) -> str:
    """XML 1.0 has no escape for control characters."""
    return "\n".join(map(one_line, text.splitlines()))
