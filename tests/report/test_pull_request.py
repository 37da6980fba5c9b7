"""Markdown that GitHub shows as it was meant."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from dpbench.printable import one_line
from dpbench.report.export.markdown import MARKUP, escape
from dpbench.report.pull_request import pull_request
from tests.analysis.assessments import REGRESSED


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
