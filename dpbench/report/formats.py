"""Tables for documents and rows for other programs, written by pandas.

Texts may come from records, so none of them is markup in a document or a formula in a spreadsheet.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

from dpbench.messages import one_line
from dpbench.report.table import MISSING, Table

if TYPE_CHECKING:
    import pandas as pd

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
MARKUP = re.compile(r"[\\`*_\[\]<>|~&]")
REFERENCE = re.compile(r"[@#](?=\w)")
"""GitHub turns these characters into a mention or a link to an issue, even if they are escaped."""
ZERO_WIDTH_SPACE = "\u200b"


def markdown_table(table: Table) -> str:
    """A padded pipe table, which is readable as plain text too."""
    text: str = _strings(table, escape).to_markdown(
        index=False,
        tablefmt="pipe",
        disable_numparse=True,
        colalign=["left" if column.text else "right" for column in table.columns],
    )
    return text


def escape(text: str) -> str:
    """The text on one line, without Markdown markup, mentions or cell separators."""
    plain = MARKUP.sub(lambda found: f"\\{found[0]}", one_line(text))
    return REFERENCE.sub(lambda found: found[0] + ZERO_WIDTH_SPACE, plain)


def html_table(table: Table) -> str:
    """A plain table element; numbers do not break at their ±."""
    frame = _strings(table, lambda text: one_line(text).replace(" ± ", "\u00a0±\u00a0"))
    text: str = frame.to_html(index=False, border=0, justify="left")
    return text


def _strings(table: Table, write: Any) -> pd.DataFrame:
    import pandas as pd

    lines = [[write(cell) for cell in line] for line in table.lines]
    return pd.DataFrame(lines, columns=[write(header) for header in table.headers], dtype=str)


def csv_text(frame: pd.DataFrame) -> str:
    """A header of keys and one line per row; missing values are empty. An apostrophe stands before
    every text that a spreadsheet would compute."""
    from pandas.api.types import is_numeric_dtype

    def inert(value: Any) -> Any:
        is_formula = isinstance(value, str) and value.startswith(_FORMULA)
        return f"'{value}" if is_formula else value

    # Of a categorical column, such as those of the millions of steps, only the categories are seen.
    texts = {
        name: column.map(inert, na_action="ignore")
        for name, column in frame.items()
        if not is_numeric_dtype(column.dtype)
    }
    return str(frame.assign(**texts).to_csv(index=False, lineterminator="\n"))


def json_text(frame: pd.DataFrame) -> str:
    """An array with one object per row; missing values are null and infinity is the text "inf"."""
    import pandas as pd

    plain = frame.astype(object).where(frame.notna(), None)
    plain = plain.replace({math.inf: "inf", -math.inf: "-inf"})
    rows = plain.to_dict("records") if isinstance(plain, pd.DataFrame) else []
    return json.dumps(rows, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def table_of_frame(frame: pd.DataFrame) -> Table:
    """The frame as a table of texts, numbers to six digits."""
    from pandas.api.types import is_numeric_dtype

    from dpbench.report.table import text_table

    def write(value: Any) -> str:
        return f"{value:.6g}" if isinstance(value, float) else str(value)

    plain = frame.astype(object).where(frame.notna(), MISSING)
    words = [name for name, dtype in frame.dtypes.items() if not is_numeric_dtype(dtype)]
    lines = ([write(value) for value in row] for row in plain.itertuples(index=False))
    return text_table([*map(str, frame.columns)], lines, words=[*map(str, words)])
