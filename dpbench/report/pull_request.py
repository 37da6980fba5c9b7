"""A check as Markdown, for the summary of a workflow's run or a comment on a pull request."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dpbench.analysis.verdict import Verdict
from dpbench.report.cells import one_line
from dpbench.report.verdict_table import headline, reading, sides, table

MARKUP = re.compile(r"[\\`*_\[\]<>|~&]")
REFERENCE = re.compile(r"[@#](?=\w)")
"""What GitHub turns into a mention or a link to an issue, even if it is escaped."""
ZERO_WIDTH_SPACE = "\u200b"


def pull_request(verdict: Verdict, notes: Sequence[str]) -> str:
    """The headline, the table, and the notes folded away."""
    outcome, _, rest = headline(verdict).partition(": ")
    return "\n".join(
        [
            f"### dpbench check: {outcome}",
            "",
            escape(f"{sides(verdict.rows)}: {rest}"),
            "",
            table(verdict.rows, "pipe", escape),
            "",
            "<details><summary>Notes</summary>",
            "",
            *(f"- {escape(note)}" for note in (*reading(verdict.rows), *notes)),
            "",
            "</details>",
            "",
        ]
    )


def escape(text: str) -> str:
    """The text as it is, in one line: nothing in it is markup, mentions anyone or ends a cell."""
    plain = MARKUP.sub(lambda found: f"\\{found[0]}", one_line(text))
    return REFERENCE.sub(lambda found: found[0] + ZERO_WIDTH_SPACE, plain)
