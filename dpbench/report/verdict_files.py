"""A check's verdict as files: Markdown for a pull request, and JUnit."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence

from dpbench.analysis.comparisons.verdict import Assessment, Verdict
from dpbench.messages import one_line
from dpbench.report.formats import escape, markdown_table
from dpbench.report.verdict import headline, labels, reading, sentence, sides, table


def pull_request(verdict: Verdict, notes: Sequence[str]) -> str:
    """The headline, the table, and the notes folded away."""
    outcome, _, rest = headline(verdict).partition(": ")
    return "\n".join(
        [
            f"### dpbench check: {outcome}",
            "",
            escape(f"{sides(verdict.rows)}: {rest}"),
            "",
            markdown_table(table(verdict.rows)),
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
    """One testcase per metric and candidate, one per row; a regression is a failure.

    An inconclusive verdict is skipped, with `strict` a failure. What could not be measured is an
    error. `started_utc` is ISO 8601 without fractions.
    """
    verdict = assessment.verdict
    cases = []
    for one in verdict.metrics:
        cases.append(case := _case(f"dpbench.{one.metric}", f"all rows of {one.candidate}"))
        whole = Verdict(outcome=one.outcome, metrics=(one,), rows=verdict.rows)
        message = one_line(headline(whole))
        if one.outcome == "regressed" or (strict and one.outcome == "inconclusive"):
            ElementTree.SubElement(case, "failure", message=message, type=one.outcome)
        elif one.outcome == "inconclusive":
            ElementTree.SubElement(case, "skipped", message=message)
    for name, row in zip(labels(verdict.rows), verdict.rows, strict=True):
        cases.append(case := _case(f"dpbench.{row.comparison.metric}", name))
        if row.regressed:
            message = one_line(f"regressed: {sentence(row)}")
            ElementTree.SubElement(case, "failure", message=message, type="regressed")
    for label, how in assessment.failures:
        cases.append(case := _case("dpbench.measuring", label))
        ElementTree.SubElement(case, "error", message=one_line(how), type="measuring")
    counts = {
        "name": "dpbench check",
        "tests": str(len(cases)),
        "failures": str(sum(case.find("failure") is not None for case in cases)),
        "errors": str(len(assessment.failures)),
        "time": "0",
    }
    # The schema gives the outer element no count of skipped cases.
    suites = ElementTree.Element("testsuites", counts)
    skipped = str(sum(case.find("skipped") is not None for case in cases))
    suite = ElementTree.SubElement(
        suites, "testsuite", {**counts, "skipped": skipped, "timestamp": started_utc}
    )
    suite.extend(cases)
    # XML 1.0 has no escape for control characters, which one_line writes out.
    said = "\n".join(map(one_line, [headline(verdict), *notes]))
    ElementTree.SubElement(suite, "system-out").text = said
    ElementTree.indent(suites)
    text: str = ElementTree.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _case(class_name: str, name: str) -> ElementTree.Element:
    return ElementTree.Element("testcase", classname=class_name, name=one_line(name), time="0")
