"""A check as Markdown, for the summary of a workflow's run or a comment on a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from dpbench.analysis.verdict import Verdict
from dpbench.report.export.markdown import escape
from dpbench.report.verdict_table import headline, reading, sides, table


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
