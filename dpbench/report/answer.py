"""Answers of commands: paragraphs for people, and the same content as data for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpbench.analysis.estimate import Estimate
from dpbench.report.table import TEXT_WIDTH, Table, escape, terminal_width, wrap_text

Paragraph = str | Table | Sequence[str]
"""Lines of text, a table, or notes. An empty one is left out."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Answer:
    """One answer in every form; Python shows and prints its text."""

    paragraphs: tuple[Paragraph, ...]
    data: Any = None
    """Plain values for --json."""
    exit_status: int = 0
    """The exit status of the command that prints it."""

    @property
    def text(self) -> str:
        """The paragraphs as wide as the terminal on stdout, a blank line between them; in a file or
        a pipe tables have all their columns."""
        width = terminal_width()
        narrow = min(width or TEXT_WIDTH, TEXT_WIDTH)

        def written(paragraph: Paragraph) -> str:
            if isinstance(paragraph, Table):
                return paragraph.text(width)
            if isinstance(paragraph, str):
                return "\n".join(wrap_text(line, narrow) for line in paragraph.splitlines())
            notes = (wrap_text(note, narrow, first="· ", others="  ") for note in paragraph)
            return "\n".join(notes)

        return "\n\n".join(filter(None, map(written, self.paragraphs))) + "\n"

    def __repr__(self) -> str:
        return self.text

    @property
    def markdown(self) -> str:
        """The same as Markdown, in which no text is markup; notes are folded."""

        def written(paragraph: Paragraph) -> str:
            if isinstance(paragraph, Table):
                return paragraph.markdown
            if isinstance(paragraph, str):
                return "\n\n".join(map(escape, paragraph.splitlines()))
            notes = "\n".join(f"- {escape(note)}" for note in paragraph)
            return f"<details><summary>Notes</summary>\n\n{notes}\n\n</details>" if notes else ""

        return "\n\n".join(filter(None, map(written, self.paragraphs))) + "\n"

    def render(self, *, as_json: bool) -> str:
        """The form that --json chooses."""
        return json_text(self.data) if as_json else self.text


def json_text(data: Any) -> str:
    """Data as --json prints it; raises ValueError for infinity and NaN, which JSON lacks."""
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def with_ends(key: str, estimate: Estimate | None) -> dict[str, float | None]:
    """The value under `key`, its interval under `key`_low and `key`_high."""
    if estimate is None:
        return {key: None, f"{key}_low": None, f"{key}_high": None}
    return {key: estimate.value, f"{key}_low": estimate.low, f"{key}_high": estimate.high}
