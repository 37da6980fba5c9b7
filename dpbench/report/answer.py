"""What a command answers: paragraphs for people, and the same as data for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dpbench.report.notes import bullet
from dpbench.report.table import Table
from dpbench.report.terminal import write_table


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One answer in both forms."""

    paragraphs: tuple[str | Table, ...]
    """Empty ones are left out."""
    data: Any
    """Plain values; a command that has no JSON leaves it None."""

    @property
    def text(self) -> str:
        """The paragraphs, a blank line between them."""
        written = (p if isinstance(p, str) else write_table(p) for p in self.paragraphs)
        return "\n\n".join(paragraph for paragraph in written if paragraph) + "\n"

    @property
    def json(self) -> str:
        return json_text(self.data)

    def shown(self, *, as_json: bool) -> str:
        """The form that --json chooses."""
        return self.json if as_json else self.text


def bullets(notes: Iterable[str]) -> str:
    """One paragraph with a bullet for each note."""
    return "\n".join(map(bullet, notes))


def json_text(data: Any) -> str:
    """Data as --json prints it; raises ValueError for infinity and NaN, which JSON lacks."""
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
