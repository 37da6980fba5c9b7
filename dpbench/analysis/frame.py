"""Summaries as a pandas data frame, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.rows import ROW_KEYS, to_row


def to_frame(summaries: Iterable[ConfigurationSummary]) -> pd.DataFrame:
    """One row per configuration; columns are the keys of the JSON rows; None is missing."""
    return pd.DataFrame([to_row(row) for row in summaries], columns=list(ROW_KEYS))
