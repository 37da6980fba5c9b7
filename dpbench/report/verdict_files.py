"""A check's verdict as files: Markdown for a pull request, JUnit, and github-action-benchmark."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Collection, Sequence

from dpbench.analysis.comparisons.verdict import Assessment, RowVerdict, Verdict
from dpbench.analysis.fields.levels import METRICS
from dpbench.errors import UsageError
from dpbench.messages import one_line
from dpbench.report.answer import json_text
from dpbench.report.export.formats import escape
from dpbench.report.numbers import decimals, quantity
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


def tool(metrics: Collection[str]) -> str:
    """The name of the tool that reads the file; raises UsageError for two directions."""
    bigger = [metric for metric in metrics if METRICS[metric].higher_is_better]
    smaller = [metric for metric in metrics if not METRICS[metric].higher_is_better]
    if bigger and smaller:
        raise UsageError(
            f"--benchmark-action: {bigger[0]} is better when larger and {smaller[0]} when smaller, "
            "but the action reads one direction a file; check the stored results once for each"
        )
    return "customBiggerIsBetter" if bigger else "customSmallerIsBetter"


def benchmark_action(verdict: Verdict) -> str:
    """An entry per configuration and metric that the candidate has a value of."""
    named = zip(labels(verdict.rows), verdict.rows, strict=True)
    entries = [entry for name, row in named if (entry := _entry(name, row))]
    return json_text(entries)


def _entry(name: str, row: RowVerdict) -> dict[str, str | float] | None:
    measured = row.comparison.candidate
    if measured is None:
        return None
    entry: dict[str, str | float] = {
        "name": f"{row.comparison.metric}, {name}",
        "unit": measured.unit,
        "value": measured.value,
        "extra": (
            f"{row.outcome} against {row.comparison.baseline_label}: {sentence(row)}, "
            f"n = {row.comparison.repetitions[1]}"
        ),
    }
    if measured.half_width is not None:
        places = decimals(measured.half_width, measured.value)
        entry["range"] = f"± {measured.half_width:.{places}f}"
    return entry
