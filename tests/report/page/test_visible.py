"""What stands on a page can be seen, and its file can be written."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from dpbench.report.page.visible import visible


def test_control_characters_have_pictures() -> None:
    assert visible("\x1b[31mred\x00\x7f") == "␛[31mred␀␡"


def test_lines_and_tabs_stay() -> None:
    assert visible("one\r\ntwo\n\tthree") == "one\ntwo\n\tthree"


def test_what_turns_the_direction_of_writing_is_shown() -> None:
    assert visible("exe.\u202egnp") == "exe.�gnp"


@given(st.text(st.characters(blacklist_categories=())))
def test_any_text_can_be_written_and_hides_nothing(text: str) -> None:
    seen = visible(text)
    seen.encode()
    assert not {"Cc", "Cs"} & {unicodedata.category(c) for c in seen if c not in "\n\t"}
    assert visible(seen) == seen


@given(st.text(st.characters(whitelist_categories=("L", "N", "P", "S", "Zs"))))
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert visible(text) == text
