"""Answers of commands: paragraphs for people, and the same content as data for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dpbench.analysis.estimate import Estimate
from dpbench.report.table import Table
from dpbench.report.terminal import bullet, write_table


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

    def render(self, *, as_json: bool) -> str:
        """The form that --json chooses."""
        return self.json if as_json else self.text


def bullets(notes: Iterable[str], width: int | None = None) -> str:
    """One paragraph with a bullet for each note."""
    return "\n".join(bullet(note, width) for note in notes)


def json_text(data: Any) -> str:
    """Data as --json prints it; raises ValueError for infinity and NaN, which JSON lacks."""
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def plain_estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    """The estimate with its interval; None where nothing was measured."""
    if estimate is None:
        return None
    return {
        "value": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "unit": estimate.unit,
        "confidence": estimate.confidence,
        "sample_size": estimate.sample_size,
        "basis": estimate.basis,
    }


def with_ends(key: str, estimate: Estimate | None) -> dict[str, float | None]:
    """The value under `key`, its interval under `key`_low and `key`_high."""
    if estimate is None:
        return {key: None, f"{key}_low": None, f"{key}_high": None}
    return {key: estimate.value, f"{key}_low": estimate.low, f"{key}_high": estimate.high}
