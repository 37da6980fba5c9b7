"""Generated parts are found, and nothing else of a document changes."""

from __future__ import annotations

import pytest

from tests.documentation import outputs
from tests.documentation.blocks import Block, blocks, renewed

TEXT = """before
<!-- generated: output, paragraph 2 -->
```
$ dpbench list
old
```
between
<!-- generated: columns shown -->
| old |
|---|
after
<!-- generated: charts -->

<!-- a comment -->
"""


def test_blocks_have_their_kind_details_and_body() -> None:
    assert blocks(TEXT) == [
        Block(kind="output", details="paragraph 2", body="$ dpbench list\nold\n", line=2),
        Block(kind="columns", details="shown", body="| old |\n|---|\n", line=8),
        Block(kind="charts", details="", body="", line=12),
    ]


def test_only_bodies_are_replaced() -> None:
    assert renewed(TEXT, lambda block: block.body) == TEXT
    new = renewed(TEXT, lambda block: f"new {block.line}\n")
    assert new == TEXT.replace("$ dpbench list\nold", "new 2").replace(
        "| old |\n|---|", "new 8"
    ).replace("charts -->\n", "charts -->\nnew 12\n")


def test_a_fence_that_is_not_closed_is_said() -> None:
    with pytest.raises(ValueError, match="line 2: the fence is not closed"):
        blocks("<!-- generated: output -->\n```\n$ dpbench list\n")


def test_commands_may_go_on_over_lines() -> None:
    body = "$ dpbench project a \\\n    --group-sizes 4\nprinted \\\n$ dpbench list\n"
    assert outputs.commands(body) == ["dpbench project a \\\n    --group-sizes 4", "dpbench list"]


def test_a_session_shows_what_its_statements_show() -> None:
    body = ">>> a = [\n...     1]\n>>> a\nold\n>>> print('b')\n"
    assert outputs.session(body) == ">>> a = [\n...     1]\n>>> a\n[1]\n>>> print('b')\nb\n"


def test_a_command_that_fails_is_no_output() -> None:
    with pytest.raises(AssertionError, match="exit status 2"):
        outputs.console("$ dpbench report nowhere\n", "")
    with pytest.raises(AssertionError, match="only dpbench"):
        outputs.console("$ rm nowhere\n", "")


@pytest.mark.parametrize(
    ("details", "selected"),
    [
        ("", "a\n\nb 1\nb 2\n\nc\n"),
        ("paragraph 1", "a\n\n…\n"),
        ("paragraphs 2-3", "…\n\nb 1\nb 2\n\nc\n"),
        ('paragraph "b 1"', "…\n\nb 1\nb 2\n\n…\n"),
    ],
)
def test_paragraphs_are_selected_and_the_rest_leaves_a_mark(details: str, selected: str) -> None:
    assert outputs.selected("a\n\nb 1\nb 2\n\nc\n", details) == selected


@pytest.mark.parametrize("details", ["paragraph 4", "paragraphs 2-1", 'paragraph "x"', "lines 1"])
def test_paragraphs_that_are_not_there_are_an_error(details: str) -> None:
    with pytest.raises(AssertionError):
        outputs.selected("a\n\nb\n\nc\n", details)
