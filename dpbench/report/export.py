"""Rows for programs: CSV and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dpbench.errors import UnknownName, UsageError
from dpbench.messages import option_words
from dpbench.report.answer import json_text

if TYPE_CHECKING:
    import pandas as pd

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""Beginnings of texts that a spreadsheet would compute; any text may come from a record."""


def frame_text(frame: pd.DataFrame, format: str, columns: str | None = None) -> str:
    """The rows for programs, as CSV or JSON, with these `columns`, all unless given.

    CSV has a header of keys and one line per row; missing values are empty, and an apostrophe
    stands before every text that a spreadsheet would compute. JSON is an array with one object per
    row; missing values are null and infinity is the text "inf". Raises UsageError for a format of
    documents, and UnknownName for an unknown column.
    """
    from pandas.api.types import is_numeric_dtype

    if columns is not None:
        frame = frame[list(parse_keys(columns, map(str, frame.columns)))]

    if format == "json":
        plain = frame.astype(object).where(frame.notna(), None)
        plain = plain.replace({math.inf: "inf", -math.inf: "-inf"})
        return json_text(plain.to_dict("records"))
    if format != "csv":
        raise UsageError(f"{format} has rows of configurations only; expected csv or json")

    def inert(value: Any) -> Any:
        is_formula = isinstance(value, str) and value.startswith(_FORMULA)
        return f"'{value}" if is_formula else value

    # Only the categories of a categorical column are seen; millions of steps share them.
    texts = {
        name: column.map(inert, na_action="ignore")
        for name, column in frame.items()
        if not is_numeric_dtype(column.dtype)
    }
    return str(frame.assign(**texts).to_csv(index=False, lineterminator="\n"))


def parse_keys(text: str, known: Iterable[str], *, layouts: Sequence[str] = ()) -> tuple[str, ...]:
    """Parse a list of keys; `layouts` are other values of --columns, which stand alone."""
    names, keys = tuple(name.strip() for name in text.split(",")), tuple(known)
    option = option_words("columns", text)
    for name in names:
        if name in layouts:
            raise UsageError(f"{option}: {name} is a table of its own; expected it alone")
        if name not in keys:
            raise UnknownName(option_words("columns"), name, [*keys, *layouts])
        if names.count(name) > 1:
            raise UsageError(f"{option}: expected each column once, got {name} twice")
    return names
